"""What a person is told to do about a revision that does not come to serve."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_pytorch.launcher.kserve.advice import what_to_do
from kfp_pytorch.launcher.kserve.evidence import Snapshot
from kfp_pytorch.launcher.kserve.rollout import Rollout

Object = dict[str, Any]
DEPLOYMENT = {"kind": "Deployment", "metadata": {"name": "digits-predictor"}}


def advice(*pods: Object, refusal: str = "", workload: Object | None = DEPLOYMENT) -> str:
    return what_to_do(Rollout(False, "pods", refusal), Snapshot({}, workload, list(pods), ""))


def pod(name: str = "kserve-container", ready: bool = False, **state: Object) -> Object:
    part = "initContainerStatuses" if name == "storage-initializer" else "containerStatuses"
    last = state.pop("last", {})
    status = {"name": name, "ready": ready, "state": state, "lastState": last}
    return {"metadata": {"name": "p"}, "status": {"phase": "Pending", part: [status]}}


def ended(code: int = 1, reason: str = "Error") -> Object:
    return {"exitCode": code, "reason": reason}


def unfit(words: str) -> Object:
    scheduled = {"type": "PodScheduled", "status": "False", "message": words}
    return {"status": {"phase": "Pending", "conditions": [scheduled]}}


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (pod(waiting={"reason": "ImagePullBackOff"}), "comes from the runtime"),
        (pod(waiting={"reason": "CreateContainerConfigError"}), "Secret or ConfigMap"),
        (
            pod(
                waiting={
                    "reason": "CreateContainerConfigError",
                    "message": "container has runAsNonRoot and image will run as root",
                }
            ),
            '"securityContext": {"runAsUser": 1000}',
        ),
        (pod("storage-initializer", running={}), "still being fetched"),
        (pod("storage-initializer", terminated=ended()), "storage_uri"),
        (pod("storage-initializer", terminated=ended(137, "OOMKilled")), "Raise memory"),
        (pod(waiting={"reason": "CrashLoopBackOff"}, last={"terminated": ended()}), "its server"),
        (pod(running={}), "readiness probe"),
        ({"status": {"phase": "Failed", "reason": "Evicted"}}, "took the pod away"),
        (unfit("3 Insufficient cpu"), "Ask for less"),
        (unfit('persistentvolumeclaim "c" not found'), "kubectl describe pvc"),
    ],
)
def test_what_is_wrong_with_a_pod_decides(seen: Object, said: str) -> None:
    assert said in advice(pod("storage-initializer", terminated=ended(0)), seen)


def test_without_pods_it_is_what_should_make_them_that_is_looked_at() -> None:
    assert "kserve-controller-manager" in advice(workload=None)
    assert "kubectl describe Deployment digits-predictor" in advice()
    unread = Snapshot({}, DEPLOYMENT, [], "The pods could not be read")
    assert "describe" not in what_to_do(Rollout(False), unread)


def test_pods_that_are_refused_are_told_what_refuses_them() -> None:
    words = 'pods "p" is forbidden: exceeded quota: gpus, used: nvidia.com/gpu=4'
    refused = {"type": "ReplicaFailure", "status": "True", "message": words}
    assert "larger quota" in advice(workload=DEPLOYMENT | {"status": {"conditions": [refused]}})


@pytest.mark.parametrize(
    ("container", "said"),
    [("storage-initializer", "ClusterStorageContainer"), ("kserve-container", "ServingRuntime")],
)
def test_a_restricted_namespace_is_told_whose_container_breaks_its_rules(
    container: str, said: str
) -> None:
    words = (
        'pods "p" is forbidden: violates PodSecurity "restricted:latest": '
        f'allowPrivilegeEscalation != false (container "{container}" must set '
        "securityContext.allowPrivilegeEscalation=false)"
    )
    refused = {"type": "ReplicaFailure", "status": "True", "message": words}
    advised = advice(workload=DEPLOYMENT | {"status": {"conditions": [refused]}})
    assert said in advised
    assert "pod_template_patch" not in advised


def test_a_spec_that_no_runtime_serves_is_told_where_runtimes_are() -> None:
    assert "kubectl get servingruntimes" in advice(refusal="NoSupportingRuntime: none found")


def test_a_stopped_service_is_for_its_stopper_to_start() -> None:
    service = {"metadata": {"annotations": {"serving.kserve.io/stop": "true"}}}
    said = what_to_do(Rollout(False, "", "stopped"), Snapshot(service, None, [], ""))
    assert "whoever stopped it" in said
