"""The error that ended a program, found in its log."""

from __future__ import annotations

import pytest
from harness.evident import container, end, first_line, of, pod

from kfp_pytorch.launcher import tracebacks

HEAD = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    x()\n'
HANDLED = "\nDuring handling of the above exception, another exception occurred:\n\n"
CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"


@pytest.mark.parametrize("link", [HANDLED, CAUSED])
def test_of_errors_that_led_to_one_another_the_last_ended_the_program(link: str) -> None:
    found = tracebacks.first(f"{HEAD}KeyError: 1\n{link}{HEAD}RuntimeError: cannot load\n")
    assert found is not None
    assert (found.type, found.message) == ("RuntimeError", "cannot load (after KeyError: 1)")
    assert found.traceback.count("Traceback") == 2


def test_errors_that_have_nothing_to_do_with_each_other_are_no_chain() -> None:
    found = tracebacks.first(f"{HEAD}KeyError: 1\nstep 7\n{HEAD}RuntimeError: cannot load\n")
    assert found is not None
    assert (found.type, found.message) == ("KeyError", "1")


def test_torchruns_summary_ends_no_chain() -> None:
    found = tracebacks.first(f"{HEAD}KeyError: 1\n{CAUSED}{HEAD}x.ChildFailedError: \n")
    assert found is not None
    assert (found.type, found.message) == ("KeyError", "1")


def test_a_script_that_cannot_be_parsed_has_no_traceback_and_is_named_all_the_same() -> None:
    source = "    def f(\n         ^\n"
    log = f'  File "/app/train.py", line 3\n{source}SyntaxError: never closed\n'
    found = tracebacks.first(log)
    assert found is not None
    assert (found.type, found.message) == ("SyntaxError", "never closed")
    assert "line 3" in found.traceback


def test_words_that_go_on_in_the_next_line_are_told_with_it() -> None:
    last = 'RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s): "fc.weight".\n'
    found = tracebacks.first(HEAD + last)
    assert found is not None
    assert found.message.endswith('state_dict for Net: Missing key(s): "fc.weight".')


@pytest.mark.parametrize(
    "log",
    [
        f"\x1b[31m{HEAD}\x1b[0m\x1b[1mValueError\x1b[0m: bad\n",
        f"10%|# | 1/10\r20%|## | 2/10\r{HEAD}ValueError: bad\n",
        "".join(f"[default1]:{line}\n" for line in f"{HEAD}ValueError: bad".splitlines()),
    ],
    ids=["coloured", "after a bar", "prefixed"],
)
def test_what_terminals_and_launchers_add_hides_no_error(log: str) -> None:
    found = of(pod(0, container(state=end(1))), logs={"j-master-0": log})
    assert first_line(found) == "j-master-0 raised ValueError: bad."
    assert "\x1b" not in found.message


def test_arguments_that_a_program_does_not_take_are_told_in_its_words() -> None:
    log = "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --epoch=3\n"
    found = of(pod(0, container(state=end(2))), logs={"j-master-0": log})
    assert first_line(found).endswith("train.py: error: unrecognized arguments: --epoch=3.")
    assert "Correct args" in found.message.splitlines()[1]
