"""Docstrings are wrapped in the code; what a package describes is not."""

import inspect

import pytest

from kfp_pytorch import components
from kfp_pytorch.components.descriptions import of_inputs, unwrapped, without_sections
from kfp_pytorch.components.interfaces import INTERFACES

COMPONENTS = [interface.name for interface in INTERFACES]


def documented():
    """Does one thing,
    and another.

    A paragraph that is
    wrapped.

    Another one.

    Args:
        first: A short one.
        second: One that goes on
            in a second line, and
            in a third.

    Returns:
        what: A result that
            is wrapped.
    """


def test_each_paragraph_and_argument_becomes_one_line():
    assert unwrapped(documented).__doc__.splitlines() == [
        "Does one thing, and another.",
        "",
        "A paragraph that is wrapped.",
        "",
        "Another one.",
        "",
        "Args:",
        "    first: A short one.",
        "    second: One that goes on in a second line, and in a third.",
        "",
        "Returns:",
        "    what: A result that is wrapped.",
    ]


@pytest.mark.parametrize("name", COMPONENTS)
def test_no_description_of_an_input_or_output_has_a_line_break(name):
    spec = getattr(components, name).component_spec
    described = [*spec.inputs.values(), *(spec.outputs or {}).values()]
    assert not [each.description for each in described if "\n" in (each.description or "")]


@pytest.mark.parametrize("name", COMPONENTS)
def test_help_shows_the_docstring_wrapped(name):
    shown = inspect.getdoc(getattr(components, name))
    assert max(map(len, shown.splitlines())) <= 100


def test_a_component_has_no_description_of_its_inputs_and_params_one_sentence_of_each():
    def serve():
        """Serves.

        A paragraph.

        Args:
            namespace: Its namespace; empty for the step's own.
            model: The model, such as v1.5. It is where
                its URI says.
            url: A good URL.

        Returns:
            served: Where.
        """

    assert of_inputs(serve) == {
        "namespace": "Its namespace.",
        "model": "The model, such as v1.5.",
        "url": "A good URL.",
    }
    assert without_sections(serve).__doc__ == "Serves.\n\nA paragraph."


@pytest.mark.parametrize("name", COMPONENTS)
def test_each_input_of_a_component_is_described_to_a_person(name):
    component = getattr(components, name)
    inputs = component.component_spec.inputs
    assert inputs.keys() <= of_inputs(component.python_func).keys()
    assert not [name for name, each in inputs.items() if each.description]
