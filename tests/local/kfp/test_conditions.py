"""Conditions of a local run, as KFP compiles them."""

import pytest
from kfp.compiler.compiler_utils import additional_input_name_for_pipeline_channel
from kfp.compiler.pipeline_spec_builder import _binary_operations_to_cel_conjunctive
from kfp.dsl.pipeline_channel import PipelineParameterChannel

from kfp_pytorch.local.kfp.conditions import holds


def channel(name, kind):
    return PipelineParameterChannel(name=name, channel_type=kind, task_name="made-by")


VALUES = {
    ("text", "String"): """it's "x" && !y' or 'a' == 'a""",
    ("plain", "String"): "a && !b",
    ("float", "Float"): 0.5,
    ("int", "Integer"): 2.0,
    ("flag", "Boolean"): False,
    ("zero", "Integer"): 0,
}
CHANNELS = {key[0]: channel(*key) for key in VALUES}


def told(condition):
    values = {
        additional_input_name_for_pipeline_channel(CHANNELS[name]): value
        for (name, _), value in VALUES.items()
    }
    return holds(_binary_operations_to_cel_conjunctive([condition]), values.get)


@pytest.mark.parametrize(
    ("name", "compare", "expected"),
    [
        ("text", lambda c: c == "other", False),
        ("text", lambda c: c != "other", True),
        ("plain", lambda c: c == "a && !b", True),
        ("float", lambda c: c > 0, True),
        ("float", lambda c: c >= 1, False),
        ("float", lambda c: c < 0.6, True),
        ("int", lambda c: c == 2, True),
        ("int", lambda c: c < 1.5, False),
        ("flag", lambda c: c == False, True),  # noqa: E712 - dsl compares so
        ("flag", lambda c: c == True, False),  # noqa: E712
        ("zero", lambda c: c == 0, True),
    ],
)
def test_each_comparison_that_authors_write_is_what_it_says(name, compare, expected):
    assert told(compare(CHANNELS[name])) is expected


def test_an_else_is_the_opposite_and_chains_hold_together():
    first, second = (CHANNELS["float"] > 1), (CHANNELS["int"] == 2)
    first.negate = True
    values = {
        additional_input_name_for_pipeline_channel(CHANNELS[name]): value
        for (name, _), value in VALUES.items()
    }
    assert holds(_binary_operations_to_cel_conjunctive([first, second]), values.get)
    second.negate = True
    assert not holds(_binary_operations_to_cel_conjunctive([first, second]), values.get)


def test_what_nothing_made_does_not_hold_and_what_cannot_be_compared_is_an_error():
    assert not holds("inputs.parameter_values['pipelinechannel--a-b'] != 'x'", {}.get)
    with pytest.raises(TypeError):
        holds("inputs.parameter_values['a'] > 1.0", {"a": "x"}.get)


def test_no_condition_holds():
    assert holds("", {}.get)


@pytest.mark.parametrize(
    "condition",
    [
        "().__class__ == 1",
        "1.0.__class__ == 1",
        "f'{().__class__}' == 'a'",
        "'''a'b'''. real == 'c'",
        '"a" == "a"',
        "[] == 1",
    ],
)
def test_what_kfp_does_not_compile_is_not_evaluated(condition):
    with pytest.raises(ValueError, match="is none that KFP compiles"):
        holds(condition, {}.get)
