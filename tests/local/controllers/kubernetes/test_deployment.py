"""The Deployment controller's decisions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from kfp_pytorch.local.controllers.kubernetes import deployment

NAMESPACE = "default"
NOW = datetime(2025, 11, 27, 12, 0, tzinfo=UTC)

Object = dict[str, Any]


def pod(name: str = "p", up: bool = True, **status: Any) -> Object:
    conditions = [{"type": "Ready", "status": str(up)}]
    return {"metadata": {"name": name}, "status": {"conditions": conditions, **status}}


def running(digest: str, name: str, up: bool = True) -> Object:
    made = pod(name, up)
    made["metadata"]["labels"] = {"pod-template-hash": digest}
    return made


def a_deployment(replicas: int = 1, **spec: Any) -> Object:
    template = {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": []}}
    metadata = {"name": "d", "namespace": NAMESPACE, "uid": "u", "generation": 1}
    made = {"metadata": metadata, "spec": {"replicas": replicas, "template": template, **spec}}
    # The first reconciliation records the ReplicaSet of the template.
    return {**made, "status": deployment.reconcile(made, [], NOW).status}


def test_a_rolling_update_keeps_the_old_pod_until_the_new_one_is_ready() -> None:
    wanted = a_deployment()
    digest = deployment.template_hash(wanted)
    old = running("old", "old-1")
    plan = deployment.reconcile(wanted, [old], NOW)
    assert (len(plan.create), plan.delete) == (1, [])
    plan = deployment.reconcile(wanted, [old, running(digest, "new-1", up=False)], NOW)
    assert (plan.create, plan.delete) == ([], [])
    assert plan.status["replicas"] == 2
    plan = deployment.reconcile(wanted, [old, running(digest, "new-1")], NOW)
    assert (plan.create, plan.delete) == ([], ["old-1"])
    plan = deployment.reconcile(wanted, [running(digest, "new-1")], NOW)
    assert reasons(plan) == ["MinimumReplicasAvailable", "NewReplicaSetAvailable"]


def reasons(plan: deployment.Plan) -> list[str]:
    return [each["reason"] for each in plan.status["conditions"]]


def test_the_conditions_of_a_rollout_come_in_the_order_of_a_real_one() -> None:
    wanted = a_deployment()
    assert wanted["status"]["conditions"][0]["reason"] == "NewReplicaSetCreated"
    assert "observedGeneration" not in wanted["status"]
    seen = []
    for pods in ([], [up := running(deployment.template_hash(wanted), "new-1", up=False)], [up]):
        plan = deployment.reconcile(wanted, pods, NOW)
        wanted["status"] = plan.status
        seen.append(reasons(plan))
        up["status"]["conditions"][0]["status"] = str(len(seen) > 1)
    assert seen == [
        ["NewReplicaSetCreated", "MinimumReplicasUnavailable"],
        ["MinimumReplicasUnavailable", "ReplicaSetUpdated"],
        ["MinimumReplicasAvailable", "NewReplicaSetAvailable"],
    ]


def test_a_pod_that_is_not_ready_any_more_starts_no_rollout() -> None:
    wanted = a_deployment()
    pod = running(deployment.template_hash(wanted), "new-1")
    wanted["status"] = deployment.reconcile(wanted, [pod], NOW).status
    pod["status"]["conditions"][0]["status"] = "False"
    plan = deployment.reconcile(wanted, [pod], NOW)
    assert reasons(plan) == ["NewReplicaSetAvailable", "MinimumReplicasUnavailable"]
    assert plan.requeue_at is None


def test_four_replicas_roll_one_more_and_one_less_at_a_time() -> None:
    wanted = a_deployment(4)
    plan = deployment.reconcile(wanted, [running("old", f"old-{i}") for i in range(4)], NOW)
    assert (len(plan.create), len(plan.delete)) == (1, 1)


def test_recreate_stops_the_old_pods_first() -> None:
    wanted = a_deployment(strategy={"type": "Recreate"})
    old = running("old", "old-1")
    plan = deployment.reconcile(wanted, [old], NOW)
    assert (plan.create, plan.delete) == ([], ["old-1"])
    old["metadata"]["deletionTimestamp"] = "2025-11-27T12:00:00Z"
    assert deployment.reconcile(wanted, [old], NOW).create == []
    assert len(deployment.reconcile(wanted, [], NOW).create) == 1


def test_fewer_replicas_delete_the_unready_first() -> None:
    wanted = a_deployment(1)
    digest = deployment.template_hash(wanted)
    pods = [running(digest, "a"), running(digest, "b", up=False)]
    assert deployment.reconcile(wanted, pods, NOW).delete == ["b"]


def test_a_rollout_without_progress_times_out() -> None:
    wanted = a_deployment(progressDeadlineSeconds=60)
    pods = [running(deployment.template_hash(wanted), "a", up=False)]
    wanted["status"] = deployment.reconcile(wanted, pods, NOW).status
    plan = deployment.reconcile(wanted, pods, NOW + timedelta(seconds=30))
    assert plan.status == wanted["status"]
    assert plan.requeue_at == NOW + timedelta(seconds=60)
    plan = deployment.reconcile(wanted, pods, NOW + timedelta(seconds=61))
    assert reasons(plan)[-1] == "ProgressDeadlineExceeded"
