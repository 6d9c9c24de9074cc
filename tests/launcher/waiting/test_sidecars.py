"""Containers beside the one that trains: what they do explains no failure that is not theirs.

A sidecar is an ordinary container, or an init container with restartPolicy Always, which runs as
long as its pod and is stopped at the end (kubernetes.io/docs/concepts/workloads/pods/
sidecar-containers).
"""

from __future__ import annotations

from typing import Any

from harness.objects import played
from harness.objects.evident import CAUSE, container, end, first_line, job, of, pod

from kfp_pytorch.launcher.constants import POD
from kfp_pytorch.launcher.diagnosis.message import diagnose
from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.kubernetes.pod_failures import crashes
from kfp_pytorch.launcher.waiting.evidence import Evidence
from kfp_pytorch.launcher.waiting.gather import Gatherer
from kfp_pytorch.launcher.waiting.limits import Limits

Object = dict[str, Any]
RUNNING = {"running": {"startedAt": "2025-11-27T12:00:00Z"}}
TRACEBACK = "Traceback (most recent call last):\n  File 'train.py'\nValueError: no cats"


def with_proxy(found: Object) -> Object:
    """The pod with a proxy as a sidecar among its init containers."""
    proxy = {"name": "istio-proxy", "image": "proxy:1", "restartPolicy": "Always"}
    found["spec"]["initContainers"].append(proxy)
    return found


def headline(why: str, *pods: Object) -> str:
    evidence = Evidence(
        PYTORCH_JOB, job=job(len(pods)), pods={p["metadata"]["name"]: p for p in pods}
    )
    return first_line(diagnose(evidence, "j still ran after 5 s (timeout)", why))


def test_a_sidecar_that_runs_is_not_what_a_pod_waits_for() -> None:
    proxy = container("istio-proxy", state=RUNNING, started=True)
    slow = with_proxy(pod(0, container(state=RUNNING), init=(proxy,)))
    assert headline("run", slow) == "j still ran after 5 s (timeout)."


def test_a_sidecar_that_does_not_come_up_is() -> None:
    proxy = container("istio-proxy", state=RUNNING, started=False)
    waiting = container(state={"waiting": {"reason": "PodInitializing"}})
    stuck = with_proxy(pod(0, waiting, init=(proxy,), phase="Pending"))
    assert "still waits in the init container 'istio-proxy'" in headline("start", stuck)


def test_a_sidecar_that_is_stopped_with_its_pod_has_not_crashed() -> None:
    for phase in ("Running", "Succeeded", "Failed"):
        stopped = container("istio-proxy", state=end(137))
        ended = with_proxy(pod(0, container(state=end(0)), init=(stopped,), phase=phase))
        assert list(crashes(ended)) == []
    broken = with_proxy(pod(0, container(state=end(1)), init=(stopped,), phase="Failed"))
    assert [crash.container for crash in crashes(broken)] == ["pytorch"]
    assert "istio-proxy' fails" not in of(broken).message


def test_a_sidecar_that_crashes_while_training_goes_on_has() -> None:
    crashed = container("istio-proxy", state=RUNNING, lastState=end(139), restarts=1)
    alive = with_proxy(pod(0, container(state=RUNNING), init=(crashed,)))
    assert [crash.container for crash in crashes(alive)] == ["istio-proxy"]


def test_the_memory_of_a_sidecar_does_not_hide_what_the_program_raised() -> None:
    logger = container("logger", lastState=end(137, "OOMKilled"), state=RUNNING, restarts=1)
    found = of(
        pod(0, container(state=end(1)), logger), pod(1), logs={"j-master-0": f"go\n{TRACEBACK}"}
    )
    assert "raised ValueError: no cats" in first_line(found)
    assert "container 'logger' of j-master-0 ran out of memory" in found.message


def test_the_memory_of_a_sidecar_is_named_as_such_where_nothing_else_failed() -> None:
    logger = container("logger", state=end(137, "OOMKilled"))
    found = of(pod(0, container(state=end(0)), logger, phase="Failed"), pod(1))
    assert first_line(found).startswith("container 'logger' of j-master-0 ran out of memory")
    assert CAUSE in found.message


def test_the_last_words_of_a_sidecar_do_not_end_the_log_of_training() -> None:
    logger = container("logger", state=end(143, message="asked to stop"))
    found = of(pod(0, container(state=end(1)), logger), logs={"j-master-0": f"go\n{TRACEBACK}"})
    assert "asked to stop" not in found.message


def test_the_log_of_a_sidecar_does_not_take_the_place_of_trainings(hands: Any, kube: Any) -> None:
    job = hands.stranger()
    gatherer = Gatherer(kube, PYTORCH_JOB, job, Limits())
    containers = [{"name": name, "image": "a"} for name in ("pytorch", "logger")]
    spec = {"nodeName": "node-1", "containers": containers}
    hands.server.call(hands.server.api.create, POD, played.pod(job, "master", 0, spec))
    ends = [container("logger", state=end(143)), container(state=end(1))]
    made = hands.pod("stranger", phase="Failed", containerStatuses=ends)
    hands.log(made, ["2025-11-27T12:00:00Z ValueError: no cats"])
    hands.log(made, ["2025-11-27T12:00:01Z flushed and gone"], container="logger")
    gatherer.read_logs(gatherer.record_pods([made]))
    assert "no cats" in gatherer.evidence.logs["stranger-master-0"]


def test_kills_of_a_sidecar_are_no_restarts_of_the_job(kube: Any) -> None:
    gatherer = Gatherer(kube, PYTORCH_JOB, {"metadata": {"name": "j", "uid": "1"}}, Limits())
    killed = pod(0, container(state=RUNNING), container("logger", state=end(137)))
    killed["metadata"]["ownerReferences"] = [{"uid": "1"}]
    gatherer.record_pods([killed])
    assert gatherer.recreated == 0
    assert gatherer.crashed == 1
