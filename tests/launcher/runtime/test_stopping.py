"""Signals: what a step does that is told to end, as a process of its own."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import pytest
from harness.faults.actions import Answer, Delay, Forbidden, LostAnswer, Reset, Stall
from harness.faults.restart import Restart
from harness.faults.watches import SilentWatch
from harness.held import Clock

from kfp_pytorch.launcher.constants import POD, PYTORCHJOB
from kfp_pytorch.launcher.runtime.own_pod import OwnPod
from kfp_pytorch.launcher.runtime.stopping import Stopper, Target

# The signal is there as soon as one can come that is not simply deadly.
SIGNALLED_BEFORE_ITS_IMPORTS = """
import os, signal
blocked = signal.pthread_sigmask
def mask(how, numbers):
    old = blocked(how, numbers)
    if how == signal.SIG_BLOCK:
        signal.pthread_sigmask = blocked
        os.kill(os.getpid(), signal.SIGTERM)
    return old
signal.pthread_sigmask = mask
"""
OWN: dict[str, Any] = {
    "metadata": {"name": "step", "namespace": "default"},
    "spec": {"containers": [{"name": "main", "image": "python"}]},
}


def own_pod(hands: Any) -> dict[str, str]:
    """The pod of the step itself, held by a finalizer once it is being deleted."""
    held = OWN | {"metadata": OWN["metadata"] | {"finalizers": ["test/hold"]}}
    made = hands.server.call(hands.server.api.create, POD, held)
    return {"KFP_POD_NAME": "step", "KFP_POD_UID": made["metadata"]["uid"]}


def drain(hands: Any) -> None:
    """Deletes the step's pod; the kubelet, too, takes a moment from there to the signal."""
    hands.delete(POD, "step")
    time.sleep(0.5)


@pytest.mark.parametrize("answers_after", [0.05, 0.2])
@pytest.mark.parametrize("watched", [True, False], ids=["watched", "may not be watched"])
@pytest.mark.parametrize("drained", [True, False], ids=["drain", "Terminate"])
def test_a_drain_is_told_from_terminate_by_a_slow_server(
    process: Any, hands: Any, answers_after: float, watched: bool, drained: bool
) -> None:
    if not watched:
        hands.fault(Forbidden(), "watch", "*/pods", times=None)
    hands.fault(Delay(answers_after), "", "*", times=None)
    step = process(own_pod(hands)).runs()
    if drained:
        drain(hands)
    assert step.signal().exit()[0] == 143
    assert (hands.count("delete", "pytorchjobs") == 0) is drained
    hands.until(lambda: bool(hands.jobs()) is drained)


@pytest.mark.parametrize(
    "failed", [Answer(429, retry_after=1), Answer(503), Reset(), Forbidden()], ids=repr
)
def test_one_failed_answer_does_not_turn_a_drain_into_terminate(
    process: Any, hands: Any, failed: Any
) -> None:
    hands.fault(Forbidden(), "watch", "*/pods", times=None)
    step = process(own_pod(hands)).runs()
    drain(hands)
    hands.fault(failed, "get", "*/pods/step")
    assert step.signal().exit()[0] == 143
    assert hands.count("delete", "pytorchjobs") == 0


def test_a_drain_is_told_though_the_watch_died_a_moment_ago(process: Any, hands: Any) -> None:
    hands.fault(SilentWatch(after_events=1), "watch", "*/pods")
    hands.fault(Delay(0.035), "", "*", times=None)
    step = process(own_pod(hands)).runs()
    drain(hands)
    assert step.signal().exit()[0] == 143
    assert hands.count("delete", "pytorchjobs") == 0


def test_a_watch_that_was_not_heard_of_for_90_s_is_not_believed(
    kube: Any, hands: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock().install(monkeypatch, "runtime.own_pod")
    hands.fault(SilentWatch(after_events=1), "watch", "*/pods")
    hands.fault(Delay(0.2), "get", "*/pods/step", times=None)
    own_pod(hands)
    pod = OwnPod(kube, "step")
    pod.start()
    hands.until(lambda: pod._seen)
    hands.delete(POD, "step")
    clock.ahead += 91.0
    assert pod.is_terminating(pod.ask())


def test_a_pod_that_was_there_and_is_gone_was_drained(kube: Any, hands: Any) -> None:
    never_seen = OwnPod(kube, "step")
    assert not never_seen.is_terminating(never_seen.ask())
    hands.fault(SilentWatch(after_events=1), "watch", "*/pods")
    hands.server.call(hands.server.api.create, POD, OWN)
    pod = OwnPod(kube, "step")
    pod.start()
    hands.until(lambda: pod._seen)
    hands.server.call(hands.server.api.delete, POD, "default", "step", "Background", grace=0)
    assert pod.is_terminating(pod.ask())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_deletes_the_job_and_ends_in_143(
    process: Any, hands: Any, number: signal.Signals
) -> None:
    code, stderr = process(own_pod(hands)).runs().signal(number).exit()
    assert code == 143
    assert "deleted" in stderr
    hands.until(lambda: hands.jobs() == [])


def test_it_works_with_nobody_left_to_read_the_output(whole_process: Any, hands: Any) -> None:
    step = whole_process().runs()
    step.process.stdout.close()
    step.process.stderr.close()
    step.signal()
    assert step.process.wait(120) == 143
    hands.until(lambda: hands.jobs() == [])


def test_a_drained_node_leaves_the_job_to_be_adopted(process: Any, hands: Any) -> None:
    environ = own_pod(hands)
    step = process(environ).runs()
    uid = step.job()["metadata"]["uid"]
    drain(hands)
    code, stderr = step.signal().exit()
    assert code == 143
    assert "adopt" in stderr
    assert hands.count("delete", "pytorchjobs") == 0
    hands.change_job(step.job()["metadata"]["name"], lambda _: None)
    again = process()
    hands.until(lambda: hands.count("create", "pytorchjobs") >= 2)
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
    with hands.unanswered("get", "*/persistentvolumeclaims/*"):
        step = process()
        hands.until(lambda: hands.count("get", "persistentvolumeclaims"))
        step.signal()
        # Whoever waits for signals looks for the job.
        hands.until(lambda: hands.count("get", "pytorchjobs"))
    assert step.exit()[0] == 143
    assert hands.count("create", "pytorchjobs") == 0


def test_a_signal_right_before_a_create_waits_for_none(kube: Any, hands: Any) -> None:
    left: list[int] = []
    stopper = Stopper(leave=left.append, grace=60.0)
    target = Target(kube, PYTORCHJOB, "not-there", lambda _: True, creating=True)
    stopper.set_target(target)
    stopping = threading.Thread(target=stopper.stop)
    stopping.start()
    hands.until(lambda: hands.count("get", "pytorchjobs"))
    with pytest.raises(SystemExit):
        stopper.check()
    stopping.join(60)
    assert left == [143]


@pytest.mark.parametrize("code", [500, 409])
def test_a_delete_that_fails_at_first_is_tried_again_within_the_grace(
    process: Any, hands: Any, code: int
) -> None:
    step = process().runs()
    hands.fault(Answer(code), "delete", times=2)
    assert step.signal().exit()[0] == 143
    hands.until(lambda: hands.jobs() == [])


def test_a_delete_whose_answer_is_lost_is_still_known_to_have_deleted(
    process: Any, hands: Any
) -> None:
    step = process().runs()
    hands.fault(LostAnswer("reset"), "delete")
    assert step.signal().exit()[0] == 143
    assert " deleted. Its folder" in step.message


def test_a_delete_that_is_refused_is_told_of_in_whole_sentences(process: Any, hands: Any) -> None:
    step = process().runs()
    hands.fault(Answer(422, message="no."), "delete", times=None)
    assert step.signal().exit()[0] == 143
    assert "could not be deleted" in step.message
    assert ".." not in step.message


def test_a_delete_is_repeated_while_the_server_starts(process: Any, hands: Any) -> None:
    step = process(own_pod(hands)).runs()
    hands.server.restart(Restart(refused_s=0.5, forbidden_s=4.0))
    code, stderr = step.signal().exit()
    assert code == 143
    assert "deleted" in stderr
    hands.until(lambda: hands.jobs() == [])


def test_a_delete_that_is_forbidden_for_long_is_repeated_where_readyz_may_not_be_read(
    kube: Any, hands: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock().install(monkeypatch, "kubernetes.transport")
    hands.stranger()
    hands.fault(Forbidden(), "get", "/readyz", times=None)
    hands.fault(Forbidden(), "delete", times=None)
    found: list[bool] = []
    target = Target(kube, PYTORCHJOB, "stranger", lambda _: True)
    deleting = threading.Thread(target=lambda: found.append(target.delete(0.0)))
    deleting.start()
    hands.until(lambda: hands.count("delete") > 1)
    clock.ahead += 45.0
    before = hands.count("delete")
    hands.until(lambda: hands.count("delete") > before + 1 or not deleting.is_alive())
    hands.server.faults.clear()
    deleting.join(60)
    assert found == [True]
    hands.until(lambda: hands.jobs() == [])


def test_a_signal_while_the_server_is_away_says_that_the_job_is_not_deleted_yet(
    process: Any, hands: Any
) -> None:
    step = process().runs()
    hands.fault(Answer(503), "delete", times=None)
    step.signal()
    hands.until(lambda: "could not be deleted yet" in step.message)
    step.signal(signal.SIGINT)
    hands.server.faults.clear()
    code, stderr = step.exit()
    assert code == 143
    assert stderr.count("Another signal does not shorten this; SIGKILL does") == 1
    assert " deleted. Its folder, for resume_from: pvc://kfp-pytorch/" in step.message


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
    step.kill()
    hands.change_job(job["metadata"]["name"], lambda obj: obj["metadata"].pop("labels"))
    with hands.unanswered("get", f"*/pytorchjobs/{job['metadata']['name']}", times=1):
        other = process()
        hands.until(lambda: hands.count("create", "pytorchjobs") >= 2)
        assert other.signal().exit()[0] == 143
    assert hands.find(PYTORCHJOB, job["metadata"]["name"]) is not None
    assert hands.count("delete", "pytorchjobs") == 0


def test_a_launcher_killed_and_restarted_adopts_its_job(process: Any, hands: Any) -> None:
    first = process().runs()
    uid = first.job()["metadata"]["uid"]
    first.kill()
    second = process()
    hands.until(lambda: hands.count("create", "pytorchjobs") >= 2)
    hands.success(first.job()["metadata"]["name"])
    assert second.exit()[0] == 0
    assert [job["metadata"]["uid"] for job in hands.jobs()] == [uid]


def test_a_signal_during_the_imports_deletes_the_job_of_an_earlier_try(
    process: Any, whole_process: Any, hands: Any
) -> None:
    first = process().runs()
    first.kill()
    again = whole_process(program=SIGNALLED_BEFORE_ITS_IMPORTS)
    code, stderr = again.exit()
    assert code == 143
    assert "deleted" in stderr
    hands.until(lambda: hands.jobs() == [])


def test_a_signal_during_the_imports_of_a_step_without_a_job_ends_it_at_once(
    whole_process: Any,
) -> None:
    code, stderr = whole_process(program=SIGNALLED_BEFORE_ITS_IMPORTS, name="metric_gate").exit()
    assert code == 143
    assert stderr == "Stopped by a signal.\n"


def test_a_signal_before_the_inputs_are_found_bad_still_ends_in_143(whole_process: Any) -> None:
    assert whole_process(program=SIGNALLED_BEFORE_ITS_IMPORTS, num_nodes=-1).exit()[0] == 143


def test_terminate_and_drain_are_told_apart_at_the_node_too(process: Any, hands: Any) -> None:
    said = []
    for drained in (False, True):
        environ = own_pod(hands)
        step = process(environ).runs()
        if drained:
            drain(hands)
        step.signal().exit()
        said.append(step.message)
        hands.reset()
    name = "PyTorchJob default/pytorch-job-"
    assert said[0].startswith(f"Stopped by a signal; {name}")
    assert " deleted. Its folder, for resume_from: pvc://kfp-pytorch/" in said[0]
    assert said[1].startswith(f"Stopped by a signal; this pod is being deleted, so {name}")
    assert " is left for a retry of the step to adopt. Its folder, " in said[1]
