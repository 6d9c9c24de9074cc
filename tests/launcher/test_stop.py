"""Signals: what a step does that is told to end, as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import POD, PYTORCHJOB
from kfp_pytorch.local.apiserver.faultactions import Answer, Delay, LostAnswer, Stall

PROGRAM = """
import json, sys
from types import SimpleNamespace
from kfp_pytorch.launcher import run_step
given = json.loads(sys.argv[1])
outputs = {
    name: SimpleNamespace(path=f"{given['folder']}/{name}", uri=f"minio://b/{name}", metadata={})
    for name in ("model", "metrics", "curves", "report")
}
run_step("pytorch_job", image="train:1", **outputs, **given["inputs"])
"""


class Step:
    """The step as KFP runs it: a process whose output is piped."""

    def __init__(self, hands: Any, folder: Any, environ: dict[str, str], **inputs: Any) -> None:
        self.hands = hands
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps({"folder": str(folder), "inputs": inputs})],
            env=os.environ | {"KUBECONFIG": str(hands.server.kubeconfig)} | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def signal(self, number: int = signal.SIGTERM) -> Step:
        self.process.send_signal(number)
        return self

    def exit(self) -> tuple[int, str]:
        """The exit code, and what it wrote to stderr."""
        _, stderr = self.process.communicate(timeout=20)
        return self.process.returncode, stderr

    def job(self) -> Any:
        """The one job, once it is there."""
        return self.hands.until(lambda: next(iter(self.hands.jobs()), None))

    def runs(self) -> Step:
        """Lets the job run and waits until the step follows it."""
        name = self.job()["metadata"]["name"]
        self.hands.running(name)
        self.hands.set_conditions(name, "Created", "Running")
        self.hands.until(lambda: self.hands.count("get", "/log"))
        return self


@pytest.fixture
def process(hands: Any, tmp_path: Any) -> Iterator[Callable[..., Step]]:
    started: list[Step] = []

    def start(environ: dict[str, str] | None = None, **inputs: Any) -> Step:
        started.append(Step(hands, tmp_path, environ or {}, **inputs))
        return started[-1]

    yield start
    for step in started:
        if step.process.poll() is None:
            step.process.kill()
            step.process.communicate()


def own_pod(hands: Any) -> dict[str, str]:
    """The pod of the step itself, held by a finalizer once it is being deleted."""
    pod = {
        "metadata": {"name": "step", "namespace": "default", "finalizers": ["test/hold"]},
        "spec": {"containers": [{"name": "main", "image": "python"}]},
    }
    made = hands.server.call(hands.server.api.create, POD, pod)
    return {"KFP_POD_NAME": "step", "KFP_POD_UID": made["metadata"]["uid"]}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_deletes_the_job_and_ends_in_143(
    process: Any, hands: Any, number: signal.Signals
) -> None:
    code, stderr = process(own_pod(hands)).runs().signal(number).exit()
    assert code == 143
    assert "deleted" in stderr
    hands.until(lambda: hands.jobs() == [])


def test_it_works_with_nobody_left_to_read_the_output(process: Any, hands: Any) -> None:
    step = process().runs()
    step.process.stdout.close()
    step.process.stderr.close()
    step.signal()
    assert step.process.wait(20) == 143
    hands.until(lambda: hands.jobs() == [])


def test_a_drained_node_leaves_the_job_to_be_adopted(process: Any, hands: Any) -> None:
    environ = own_pod(hands)
    step = process(environ).runs()
    uid = step.job()["metadata"]["uid"]
    hands.delete(POD, "step")
    code, stderr = step.signal().exit()
    assert code == 143
    assert "adopt" in stderr
    assert hands.count("delete", "pytorchjobs") == 0
    hands.change_job(step.job()["metadata"]["name"], lambda _: None)
    again = process()
    hands.until(lambda: hands.count("create", "pytorchjobs") == 2)
    hands.success(step.job()["metadata"]["name"])
    assert again.exit()[0] == 0
    assert [job["metadata"]["uid"] for job in hands.jobs()] == [uid]


def test_a_server_that_does_not_say_whether_it_is_a_drain_holds_up_no_delete(
    process: Any, hands: Any
) -> None:
    step = process(own_pod(hands)).runs()
    hands.fault(Stall(), "get", "*/pods/step", times=None)
    assert step.signal().exit()[0] == 143
    hands.until(lambda: hands.jobs() == [])


@pytest.mark.parametrize(
    "action", [LostAnswer(), Delay(0.7)], ids=["made already", "made only later"]
)
def test_a_create_in_flight_is_deleted_as_well(process: Any, hands: Any, action: Any) -> None:
    hands.fault(action, "create")
    step = process()
    hands.until(lambda: hands.count("create", "pytorchjobs"))
    time.sleep(0.1)
    assert step.signal().exit()[0] == 143
    hands.until(lambda: hands.count("delete", "pytorchjobs") and hands.jobs() == [])


def test_nothing_is_created_after_a_signal(process: Any, hands: Any) -> None:
    hands.fault(Delay(0.5), "get", "*/persistentvolumeclaims/*")
    step = process()
    hands.until(lambda: hands.count("get", "persistentvolumeclaims"))
    assert step.signal().exit()[0] == 143
    assert hands.count("create", "pytorchjobs") == 0


def test_a_delete_that_fails_at_first_is_tried_again_within_the_grace(
    process: Any, hands: Any
) -> None:
    step = process().runs()
    hands.fault(Answer(500), "delete", times=2)
    assert step.signal().exit()[0] == 143
    hands.until(lambda: hands.jobs() == [])


def test_a_second_signal_changes_nothing(process: Any, hands: Any) -> None:
    step = process().runs()
    hands.fault(Answer(500), "delete", times=2)
    assert step.signal().signal().signal(signal.SIGINT).exit()[0] == 143
    hands.until(lambda: hands.jobs() == [])


def test_cleanup_never_leaves_the_job(process: Any, hands: Any) -> None:
    code, stderr = process(cleanup="never").runs().signal().exit()
    assert code == 143
    assert "never" in stderr
    assert len(hands.jobs()) == 1


def test_a_job_of_somebody_else_is_not_deleted_by_a_signal(process: Any, hands: Any) -> None:
    step = process().runs()
    job = step.job()
    step.process.kill()
    step.process.communicate()
    hands.change_job(job["metadata"]["name"], lambda obj: obj["metadata"].pop("labels"))
    hands.fault(Delay(0.6), "get", f"*/pytorchjobs/{job['metadata']['name']}", times=1)
    other = process()
    hands.until(lambda: hands.count("create", "pytorchjobs") == 2)
    assert other.signal().exit()[0] == 143
    assert hands.find(PYTORCHJOB, job["metadata"]["name"]) is not None
    assert hands.count("delete", "pytorchjobs") == 0


def test_a_launcher_killed_and_restarted_adopts_its_job(process: Any, hands: Any) -> None:
    first = process().runs()
    uid = first.job()["metadata"]["uid"]
    first.process.kill()
    first.process.communicate()
    second = process()
    hands.until(lambda: hands.count("create", "pytorchjobs") == 2)
    hands.success(first.job()["metadata"]["name"])
    assert second.exit()[0] == 0
    assert [job["metadata"]["uid"] for job in hands.jobs()] == [uid]
