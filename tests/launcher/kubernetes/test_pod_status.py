from __future__ import annotations

from typing import Any

import pytest

from kfp_pytorch.launcher.kubernetes.pod_failures import StartupFailures, crashes, startup_failures
from kfp_pytorch.launcher.kubernetes.pod_status import (
    belongs_to,
    is_running_or_ended,
    reason_not_running,
)
from kfp_pytorch.launcher.waiting.limits import Limits

LIMITS = Limits(pull_grace=100, config_grace=20)


def pod(part: str = "containerStatuses", *, uid: str = "u1", **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "j-worker-0", "uid": uid},
        "spec": {
            "containers": [{"name": "pytorch", "image": "train:1"}],
            "initContainers": [{"name": "init-pytorch", "image": "alpine:3"}],
        },
        "status": {"phase": "Pending", part: [{"name": "pytorch", "restartCount": 0} | status]},
    }


def waiting(reason: str, words: str = "", **more: Any) -> dict[str, Any]:
    return pod(state={"waiting": {"reason": reason, "message": words}}, **more)


def test_an_image_that_cannot_be_pulled_is_fatal_after_its_grace_only() -> None:
    watch = StartupFailures(LIMITS.pull_grace, LIMITS.config_grace)
    assert watch.fatal([waiting("ErrImagePull")], 0) is None
    assert watch.next_deadline() == 100
    assert watch.fatal([waiting("ImagePullBackOff")], 99) is None
    trouble = watch.fatal([waiting("ErrImagePull", "no such host")], 100)
    assert "train:1" in str(trouble)
    assert "no such host" in str(trouble)


def test_a_pull_that_fails_once_and_then_works_counts_for_nothing_later() -> None:
    watch = StartupFailures(LIMITS.pull_grace, LIMITS.config_grace)
    assert watch.fatal([waiting("ErrImagePull")], 0) is None
    assert watch.fatal([pod(state={"running": {}})], 50) is None
    assert watch.next_deadline() is None
    assert watch.fatal([waiting("ErrImagePull")], 120) is None


def test_a_pod_made_anew_gets_a_grace_of_its_own() -> None:
    watch = StartupFailures(LIMITS.pull_grace, LIMITS.config_grace)
    assert watch.fatal([waiting("ImagePullBackOff")], 0) is None
    fresh = waiting("ImagePullBackOff")
    fresh["metadata"]["uid"] = "u2"
    assert watch.fatal([fresh], 100) is None


def test_a_pod_that_is_being_deleted_need_not_come_up() -> None:
    evicted = waiting("InvalidImageName")
    evicted["metadata"]["deletionTimestamp"] = "2025-11-27T12:00:00Z"
    assert StartupFailures(LIMITS.pull_grace, LIMITS.config_grace).fatal([evicted], 0) is None


@pytest.mark.parametrize("reason", ["InvalidImageName", "ErrImageNeverPull"])
def test_what_no_time_mends_is_fatal_at_once(reason: str) -> None:
    assert (
        StartupFailures(LIMITS.pull_grace, LIMITS.config_grace).fatal([waiting(reason)], 0)
        is not None
    )


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("RunContainerError", 'exec: "nonsuch": executable file not found in $PATH: unknown'),
        ("RunContainerError", 'exec: "/a.sh": stat /a.sh: no such file or directory: unknown'),
        ("RunContainerError", 'exec: "./train.py": permission denied: unknown'),
        ("CreateContainerError", "executable file `x` not found in $PATH: No such file or dire…"),
        ("CreateContainerError", "failed to generate spec: no command specified"),
        ("RunContainerError", 'error finding executable "x" in PATH [/usr/bin]: no such file'),
    ],
)
def test_a_program_that_the_image_does_not_have_is_fatal_at_once(reason: str, message: str) -> None:
    watch = StartupFailures(LIMITS.pull_grace, LIMITS.config_grace)
    assert message in str(watch.fatal([waiting(reason, message)], 0))


@pytest.mark.parametrize(
    "message", ["device or resource busy", 'error mounting "/a" to rootfs: permission denied']
)
def test_what_the_node_may_mend_is_given_time(message: str) -> None:
    watch = StartupFailures(LIMITS.pull_grace, LIMITS.config_grace)
    stuck = [waiting("RunContainerError", message)]
    assert watch.fatal(stuck, 0) is None
    assert watch.fatal(stuck, 20) is not None


@pytest.mark.parametrize("reason", ["CreateContainerConfigError", "PostStartHookError"])
def test_what_a_container_lacks_is_fatal_sooner_than_a_slow_registry(reason: str) -> None:
    watch = StartupFailures(LIMITS.pull_grace, LIMITS.config_grace)
    stuck = [waiting(reason, 'secret "s" not found')]
    assert watch.fatal(stuck, 0) is None
    assert 'secret "s" not found' in str(watch.fatal(stuck, 20))


def test_an_init_containers_image_counts_and_is_named() -> None:
    stuck = pod(
        "initContainerStatuses",
        name="init-pytorch",
        state={"waiting": {"reason": "ImagePullBackOff"}},
    )
    (trouble,) = startup_failures(stuck)
    assert (trouble.container, trouble.image) == ("init-pytorch", "alpine:3")


def test_a_command_that_cannot_be_started_is_trouble_also_between_its_tries() -> None:
    ended = {"reason": "StartError", "exitCode": 128, "message": 'exec: "trainn": not found'}
    between = pod(
        restartCount=1,
        state={"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
        lastState={"terminated": ended},
    )
    (trouble,) = startup_failures(between)
    assert (trouble.reason, trouble.message) == ("StartError", 'exec: "trainn": not found')


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing", "CrashLoopBackOff"])
def test_what_is_on_its_way_or_restarts_is_no_trouble(reason: str) -> None:
    assert list(startup_failures(waiting(reason))) == []


def test_each_end_that_was_no_success_is_one_crash_wherever_it_is_shown() -> None:
    end = {"terminated": {"exitCode": 1}}
    (now,) = crashes(pod(restartCount=2, state=end))
    (later,) = crashes(pod(restartCount=3, state={"waiting": {}}, lastState=end))
    (after,) = crashes(pod(restartCount=3, state={"running": {"x": 1}}, lastState=end))
    assert now == later == after
    assert (now.restarted, later.restarted, after.restarted) == (False, False, True)
    assert list(crashes(pod(state={"terminated": {"exitCode": 0}}))) == []


def test_the_schedulers_words_come_before_the_kubelets() -> None:
    stuck = waiting("ContainerCreating")
    assert reason_not_running(stuck) == "ContainerCreating"
    stuck["status"]["conditions"] = [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        }
    ]
    assert reason_not_running(stuck).startswith("Unschedulable: 0/3 nodes")


def test_a_status_of_odd_shapes_is_borne() -> None:
    for status in (None, {}, {"containerStatuses": None}, {"containerStatuses": [{}, None]}):
        odd = {"metadata": {"name": "p"}, "status": status}
        assert list(startup_failures(odd)) == []
        assert list(crashes(odd)) == []
        assert not is_running_or_ended(odd)
        assert reason_not_running(odd) == ""


def test_a_pod_that_is_being_deleted_runs_no_more_and_says_why() -> None:
    # On a node that is gone, a pod stays so for ever, its phase Running.
    leaving = {
        "metadata": {"name": "p", "deletionTimestamp": "2025-11-27T12:00:00Z"},
        "spec": {"nodeName": "gpu-7"},
        "status": {"phase": "Running"},
    }
    assert not is_running_or_ended(leaving)
    assert reason_not_running(leaving) == "it is being deleted"
    lost = {"type": "Ready", "status": "False", "reason": "NodeNotReady"}
    stuck = leaving | {"status": {"phase": "Running", "conditions": [lost]}}
    assert reason_not_running(stuck) == (
        "it is being deleted, and does not go while gpu-7 cannot be reached"
    )
    in_its_grace = {**stuck["metadata"], "deletionTimestamp": "2999-11-27T12:00:00Z"}
    assert reason_not_running(stuck | {"metadata": in_its_grace}) == "it is being deleted"
    ended = leaving | {"status": {"phase": "Succeeded"}}
    assert is_running_or_ended(ended)


def test_a_pod_of_an_earlier_job_of_the_same_name_is_not_ours() -> None:
    def job(uid: str) -> dict[str, Any]:
        return {"metadata": {"uid": uid, "creationTimestamp": "2025-11-27T12:00:00Z"}}

    def left(**metadata: Any) -> dict[str, Any]:
        return {"metadata": {"name": "p"} | metadata}

    old = left(ownerReferences=[{"uid": "old"}])
    assert not belongs_to(old, job("new"))
    assert belongs_to(old, job("old"))
    assert belongs_to(left(), job("new"))
    assert belongs_to(left(creationTimestamp="2025-11-27T12:00:00Z"), job("new"))
    assert not belongs_to(left(creationTimestamp="2025-11-27T11:59:59Z"), job("new"))
