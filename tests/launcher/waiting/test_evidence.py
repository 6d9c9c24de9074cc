"""What a person sees of a step that failed: the end of its log, and the message at its node."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.faults.actions import Forbidden
from harness.forked import Forker, Process

from kfp_pytorch.launcher.constants import POD

TRACEBACK = (
    'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    main()\n'
    "ValueError: no such data set: 'cats'\n"
)


class Seen:
    """A step, and what is seen of it."""

    def __init__(self, process: Process, hands: Any, folder: Path) -> None:
        self.process, self.hands, self._folder = process, hands, folder

    def job(self) -> str:
        return self.hands.until(lambda: next(iter(self.hands.jobs()), None))["metadata"]["name"]

    def runs(self) -> str:
        name = self.job()
        self.hands.running(name)
        self.hands.set_conditions(name, "Created", "Running")
        self.hands.until(lambda: self.hands.count("get", "/log"))
        return name

    def end(self, code: int = 1) -> tuple[str, str]:
        """What its log says after the last line that tells how it went; and the node's message."""
        ended = self.process.wait()
        assert ended.code == code, ended.log
        lines = ended.log.split("\n")
        told = [n for n, line in enumerate(lines) if line.startswith("[")]
        last = "\n".join(lines[max(told, default=-1) + 1 :]).strip()
        return last, (self._folder / "termination-log").read_text()


@pytest.fixture
def seen(hands: Any, forker: Forker, tmp_path: Path) -> Callable[..., Seen]:
    def start(**inputs: Any) -> Seen:
        log = tmp_path / "termination-log"
        log.touch()
        environ = {"KFP_PYTORCH_TERMINATION_LOG": str(log)}
        return Seen(forker.start(tmp_path / "step", environ, **inputs), hands, tmp_path)

    return start


def test_the_lines_before_a_progress_bar_are_shown_however_often_that_was_written(
    seen: Any, hands: Any
) -> None:
    step = seen()
    name = step.runs()
    bar = "\r".join(
        f"{n / 50:.0f}%|{'#' * 40}| {n}/5000 [00:09<00:00, 3.5it/s]" for n in range(5001)
    )
    words = "the \x85 shard \u2028 is empty"
    written = ["starting", words, bar, f"{bar}\r", "bye\r", "step=1 loss=0.5"]
    hands.log(
        hands.find(POD, f"{name}-master-0"),
        [f"2025-11-27T12:00:{n:02}.5Z {line}" for n, line in enumerate(written)],
    )
    hands.ended(name, 3, "")
    hands.set_conditions(name, "Created", "Failed: it broke")
    last, _ = step.end()
    shown = f"100%|{'#' * 40}| 5000/5000\n    [00:09<00:00, 3.5it/s]"
    assert f"  starting\n  {words}\n  {shown}\n  {shown}\n  bye\n  step=1 loss=0.5" in last
    assert "Correct what its log ends with: bye." in last


def test_a_program_that_raised(seen: Any, hands: Any) -> None:
    step = seen()
    name = step.runs()
    error = {"rank": 0, "time": 1.0, "type": "ValueError", "message": "no such data set: 'cats'"}
    told = {"version": 1, "status": "failed", "error": error | {"traceback": TRACEBACK}}
    hands.ended(name, 1, json.dumps(told))
    hands.set_conditions(name, "Created", "Failed: it has reached the specified backoff limit")
    log, node = step.end()
    assert (
        log
        == f"""pytorch_job failed.
Rank 0 ({name}-master-0) raised ValueError: no such data set: 'cats'.
What to do: Correct the program or its arguments and run again.

The job's folder, for resume_from:
pvc://kfp-pytorch/{name} (if it wrote a checkpoint)

What was seen:
- PyTorchJob {name} failed: PyTorchJobFailed: it has
  reached the specified backoff limit.
- {name}-master-0 ended with exit code 1
- {name}-master-0 on node-1: Failed, pytorch Error
  exit code 1

The first error (rank 0, {name}-master-0):
  Traceback (most recent call last):
    File "train.py", line 7, in <module>
      main()
  ValueError: no such data set: 'cats'"""
    )
    assert node == (
        f"pytorch_job: Rank 0 ({name}-master-0) raised ValueError: no such data set: 'cats'"
    )


def test_a_job_that_ran_for_too_long(seen: Any) -> None:
    step = seen(timeout=1)
    name = step.runs()
    log, node = step.end()
    assert log.startswith(f"""pytorch_job failed.
PyTorchJob {name} still ran after 1 s (timeout).
What to do: Raise timeout if training takes longer; a retry of the
step continues from the last """)
    assert node == f"pytorch_job: PyTorchJob {name} still ran after 1 s (timeout)"


def test_a_run_that_was_ended(seen: Any) -> None:
    step = seen()
    name = step.runs()
    step.process.signal(signal.SIGTERM)
    log, node = step.end(143)
    deleted = f"Stopped by a signal; PyTorchJob default/{name} deleted."
    folder = f"Its folder, for resume_from: pvc://kfp-pytorch/{name} (if it wrote a checkpoint)"
    assert " ".join(log.split()) == f"{deleted} {folder}"
    assert node == f"{deleted} {folder}"


def test_a_permission_that_is_missing(seen: Any, hands: Any) -> None:
    hands.fault(Forbidden(), "create", times=None)
    log, node = seen().end()
    account = "system:serviceaccount:kubeflow:pipeline-runner"
    words = f"Missing permission: {account} may not create pytorchjobs (kubeflow.org)"
    assert log.startswith(f"pytorch_job failed.\n{words} in namespace 'default'.\nAn administrator")
    assert node == f"pytorch_job: {words} in namespace 'default'."


def test_an_input_that_cannot_work(seen: Any) -> None:
    log, node = seen(num_nodes=0).end()
    words = "num_nodes is 0; it must be from 1 to 10000."
    assert log == f"pytorch_job failed.\n{words}"
    assert node == f"pytorch_job: {words}"


@pytest.mark.parametrize(
    ("reason", "first"),
    [
        ("InvalidImageName", "has an image whose name is not valid, InvalidImageName"),
        ("ErrImageNeverPull", "may not pull the image and its node does not have it"),
    ],
)
def test_a_container_that_will_never_start(seen: Any, hands: Any, reason: str, first: str) -> None:
    step = seen()
    name = step.job()
    hands.set_conditions(name, "Created")
    hands.waiting(name, reason, "couldn't parse image reference")
    log, node = step.end()
    assert log.splitlines()[1].startswith(f"{name}-master-0: container 'pytorch' {first}")
    assert log.splitlines()[2].startswith("What to do: ")
    assert node.startswith(f"pytorch_job: {name}-master-0: container 'pytorch' {first}")
