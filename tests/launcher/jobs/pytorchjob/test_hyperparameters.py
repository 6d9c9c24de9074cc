"""Hyperparameters become `--key=value` arguments, each value byte for byte."""

from __future__ import annotations

import pytest

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.jobs.pytorchjob.inputs import parse_inputs


@pytest.mark.parametrize(
    "value", ["it's", 'say "hi"', "a\\b", "$HOME", "$(date)", "{{x}}", "✨", "𝛼", "", "--foo", " "]
)
def test_a_text_reaches_the_container_as_it_is(value):
    assert parse_inputs(image="i", hyperparameters={"x": value}).args == (f"--x={value}",)


def test_numbers_are_written_the_same_way_every_time_and_come_after_the_args():
    inputs = parse_inputs(
        image="i", args=["train"], hyperparameters={"lr": 1e-5, "epochs": 20.0, "amp": True}
    )
    assert inputs.args == ("train", "--lr=1e-05", "--epochs=20", "--amp=true")


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, float("nan")])
def test_what_is_no_single_value_is_refused_by_its_name(value):
    with pytest.raises(InputError, match=r"hyperparameters\['lr'\]"):
        parse_inputs(image="i", hyperparameters={"lr": value})


@pytest.mark.parametrize("key", ["--lr", "-l", "", "a b", "a=b", "a\n", "\t"])
def test_a_key_that_would_become_another_argument_is_refused(key):
    with pytest.raises(InputError, match=r"hyperparameters has the key .*without dashes"):
        parse_inputs(image="i", hyperparameters={key: 1})


@pytest.mark.parametrize(
    "key", ["model.lr", "batch-size", "batch_size", "+optimizer/name", "größe"]
)
def test_keys_of_other_programs_are_let_through(key):
    assert parse_inputs(image="i", hyperparameters={key: 1}).args == (f"--{key}=1",)


@pytest.mark.parametrize("args", [["--lr=0.1"], ["train", "--lr", "0.1"]])
def test_an_option_that_args_give_as_well_is_refused_instead_of_passed_over(args):
    with pytest.raises(InputError, match=r"args\[[01]\] gives --lr, and so do the hyperparameters"):
        parse_inputs(image="i", args=args, hyperparameters={"lr": 0.2})
    parse_inputs(image="i", args=args, hyperparameters={"lr-decay": 0.2})
