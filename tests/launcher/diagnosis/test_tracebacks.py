"""The error that ended a program, found in its log."""

from __future__ import annotations

import pytest
from harness.objects.evident import container, end, first_line, of, pod

from kfp_pytorch.launcher.diagnosis import tracebacks

HEAD = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    x()\n'
HANDLED = "\nDuring handling of the above exception, another exception occurred:\n\n"
# As Python 3.11 writes it.
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "a.py", line 11, in <module>
  |     raise ExceptionGroup("all", errors)
  | ExceptionGroup: all (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Exception Group Traceback (most recent call last):
    |   File "b.py", line 7, in f
    |     raise ExceptionGroup("some", errors)
    | ExceptionGroup: some (1 sub-exception)
    +-+---------------- 1 ----------------
      | Traceback (most recent call last):
      |   File "in.py", line 3, in g
      |     raise ValueError("bad batch")
      | ValueError: bad batch
      +------------------------------------
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "a.py", line 9, in <module>
    |     raise KeyError(1)
    | KeyError: 1
    +------------------------------------
"""
CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"


def first(log: str) -> tracebacks.Raised | None:
    return tracebacks.first(log, lambda words: "by peer" in words)


@pytest.mark.parametrize("link", [HANDLED, CAUSED])
def test_of_errors_that_led_to_one_another_the_last_ended_the_program(link: str) -> None:
    found = first(f"{HEAD}KeyError: 1\n{link}{HEAD}RuntimeError: cannot load\n")
    assert found is not None
    assert (found.type, found.message) == ("RuntimeError", "cannot load (after KeyError: 1)")
    assert found.traceback.count("Traceback") == 2


SUMMARY = f"{HEAD}x.ChildFailedError: \n=====\ntrain.py FAILED\n"
ATEXIT = f"Exception ignored in: <function f at 0x7f>\n{HEAD}TypeError: None\n"


@pytest.mark.parametrize("after", ["", SUMMARY, ATEXIT], ids=["none", "torchrun", "atexit"])
@pytest.mark.parametrize("mark", ["", "[rank3]: "])
def test_of_errors_that_the_program_outlived_none_hides_the_one_that_ended_it(
    mark: str, after: str
) -> None:
    fatal = "".join(f"{mark}{line}\n" for line in f"{HEAD}RuntimeError: cannot load".splitlines())
    found = first(f"{HEAD}KeyError: 1\nstep 7\n{fatal}{after}")
    assert found is not None
    assert (found.type, found.message) == ("RuntimeError", "cannot load")
    assert found.rank == (3 if mark else None)


def test_an_error_leads_those_of_the_ranks_that_lost_its_rank() -> None:
    lost = f"{HEAD}RuntimeError: Connection closed by peer [10.0.0.7]:2375\n"
    found = first(f"{HEAD}ValueError: bad label\nrank 0 leaves\n{lost}rank 2 leaves\n{lost}")
    assert found is not None
    assert (found.type, found.message) == ("ValueError", "bad label")


def test_of_errors_of_many_ranks_the_first_leads() -> None:
    errors = [f"{HEAD}KeyError: {rank}\n" for rank in range(2)]
    marked = "".join(
        f"[rank{rank}]: {line}\n" for rank, text in enumerate(errors) for line in text.splitlines()
    )
    for log in (marked, "".join(errors)):
        found = first(log)
        assert found is not None
        assert found.message == "0"


@pytest.mark.parametrize("mark", ["", "[rank0]: "])
def test_of_a_group_of_errors_the_innermost_first_is_named(mark: str) -> None:
    log = "".join(f"{mark}{line}\n" for line in GROUP.splitlines())
    found = first(f"step 7\n{log}")
    assert found is not None
    assert (found.type, found.message) == ("ValueError", "bad batch")
    assert 'File "in.py"' in found.traceback


def test_torchruns_summary_ends_no_chain() -> None:
    found = first(f"{HEAD}KeyError: 1\n{CAUSED}{HEAD}x.ChildFailedError: \n")
    assert found is not None
    assert (found.type, found.message) == ("KeyError", "1")


def test_a_script_that_cannot_be_parsed_has_no_traceback_and_is_named_all_the_same() -> None:
    source = "    def f(\n         ^\n"
    log = f'  File "/app/train.py", line 3\n{source}SyntaxError: never closed\n'
    found = first(log)
    assert found is not None
    assert (found.type, found.message) == ("SyntaxError", "never closed")
    assert "line 3" in found.traceback


def test_words_that_go_on_in_the_next_line_are_told_with_it() -> None:
    last = 'RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s): "fc.weight".\n'
    found = first(HEAD + last)
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


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        (2, "j-master-0 raised KeyError: 1."),
        (30, "j-master-0 ended with exit code 137 (SIGKILL)."),
    ],
)
def test_an_error_that_was_handled_long_before_a_kill_is_not_why(steps: int, why: str) -> None:
    log = f"{HEAD}KeyError: 1\n" + "".join(f"step {n}\n" for n in range(steps))
    found = of(pod(0, container(state=end(137))), logs={"j-master-0": log})
    assert first_line(found) == why
    assert ("The first error" in found.message) is ("KeyError" in why)
