"""The components, their READMEs and `help` say what the declarations of the inputs say."""

from __future__ import annotations

import inspect
import pydoc
from typing import Any

import pytest
from kfp.dsl import Model
from kfp.dsl.python_component import PythonComponent

from kfp_pytorch import components
from kfp_pytorch.components import generate
from kfp_pytorch.components.descriptions import of_inputs
from kfp_pytorch.components.interfaces import INTERFACES, Interface
from kfp_pytorch.launcher.inputs.declaration import inputs_of

each_component = pytest.mark.parametrize("interface", INTERFACES, ids=lambda item: item.name)


def component(interface: Interface) -> Any:
    return getattr(components, interface.name)


def test_every_component_has_an_interface() -> None:
    made = [n for n in components.__all__ if isinstance(getattr(components, n), PythonComponent)]
    assert [interface.name for interface in INTERFACES] == made


@each_component
def test_the_committed_component_is_the_generated_one(interface: Interface) -> None:
    committed = generate.FOLDER / interface.name / "component.py"
    assert committed.read_text() == generate.component_source(interface), "run `make components`"


@each_component
def test_the_committed_stub_is_the_generated_one(interface: Interface) -> None:
    committed = generate.FOLDER / interface.name / "component.pyi"
    assert committed.read_text() == generate.stub_source(interface), "run `make components`"


@each_component
def test_the_readme_has_the_generated_tables(interface: Interface) -> None:
    readme = (generate.FOLDER / interface.name / "README.md").read_text()
    assert readme == generate.readme_with_tables(interface, readme), "run `make components`"
    assert readme.count(generate.BEGIN) == readme.count(generate.END) == 1


@each_component
def test_the_signature_has_every_input_with_its_default(interface: Interface) -> None:
    parameters = inspect.signature(component(interface)).parameters
    declared = {
        name: item.default
        for name, item in inputs_of(interface.declaration).items()
        if name not in ("task_config", "dataset_names")
    }
    shown = {
        name: None if parameter.default is inspect.Parameter.empty else parameter.default
        for name, parameter in parameters.items()
        if name not in interface.input_artifacts
    }
    assert shown == declared
    artifacts = set(interface.input_artifacts) - {"dataset_2", "dataset_3", "dataset_4"}
    assert set(parameters) - set(shown) == artifacts


@each_component
def test_every_input_and_output_has_a_documentation(interface: Interface) -> None:
    made = {**interface.input_artifacts, **interface.output_artifacts, **interface.outputs}
    docs = interface.inputs | {name: doc for name, (_, doc) in made.items()}
    assert [name for name, doc in docs.items() if not doc.endswith(".")] == []
    made = component(interface)
    assert made.component_spec.inputs.keys() <= of_inputs(made.python_func).keys()


@each_component
def test_every_default_is_one_that_its_reader_accepts(interface: Interface) -> None:
    for name, item in inputs_of(interface.declaration).items():
        if item.default is not None:
            item.read(name, item.default)


def test_help_shows_arguments_defaults_and_documentation() -> None:
    shown = pydoc.plain(pydoc.render_doc(components.pytorch_job))
    assert "num_nodes: int = 1," in shown
    assert "How many pods train, the first one included." in shown
    assert "storage_uri: The URI of the exported model" in shown
    assert "task_config: " not in shown
    assert "dataset_" not in shown
    assert "LauncherComponent in module" in shown
    assert inspect.signature(components.kserve_deploy).parameters["model"].annotation is Model


@each_component
def test_the_component_function_takes_all_inputs_and_artifacts(interface: Interface) -> None:
    parameters = inspect.signature(component(interface).python_func).parameters
    inputs = set(inputs_of(interface.declaration))
    assert set(parameters) == inputs | {*interface.input_artifacts, *interface.output_artifacts}
