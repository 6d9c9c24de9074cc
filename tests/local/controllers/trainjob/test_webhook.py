"""What the Trainer refuses is refused in its own words; and what this machine cannot run."""

from __future__ import annotations

from typing import Any

import pytest
from harness.objects import records

from kfp_pytorch.launcher.constants import CLUSTER_TRAINING_RUNTIME, TRAINJOB
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.store.api import Api, ApiError
from kfp_pytorch.local.controllers.kubernetes import node
from kfp_pytorch.local.controllers.trainjob import controller, webhook
from kfp_pytorch.local.controllers.trainjob.runtimes import TORCH_DISTRIBUTED

Object = dict[str, Any]
with_records = pytest.mark.skipif(
    not records.FOLDER.exists(), reason="no records of a real cluster"
)


@pytest.fixture
def api() -> Api:
    made = Api()
    node.create(made, 0)
    webhook.install(made)
    controller.create_runtime(made)
    return made


def create(api: Api, runtime: str = "torch-distributed", **trainer: Any) -> Object:
    given = {"image": "i", "command": ["python"], **trainer}
    spec = {"runtimeRef": {"name": runtime}, "trainer": given}
    meta = {"name": "j", "namespace": "default"}
    return api.create(TRAINJOB, {"metadata": meta, "spec": spec})


@with_records
def test_what_a_real_trainer_refuses_is_refused_in_its_words(api: Api) -> None:
    refused = 0
    for event in records.events("trainjob/immut"):
        request = event["object"]
        if event["type"] != "REQUEST" or request.get("status") != 403:
            continue
        words = request["answer"]["message"]
        # The Trainer notes there when a patch was made.
        if not event["kind"].startswith("POST") or '"time"' in words:
            continue
        body = request["body"]
        made = {**body, "metadata": {**body["metadata"], "namespace": "default"}}
        with pytest.raises(ApiError) as refusal:
            api.create(TRAINJOB, made)
        assert (refusal.value.code, refusal.value.message) == (403, words)
        refused += 1
    assert refused == 6


def test_the_answer_to_a_create_has_the_defaults(api: Api) -> None:
    spec = create(api)["spec"]
    reference = {
        "name": "torch-distributed",
        "apiGroup": "trainer.kubeflow.org",
        "kind": "ClusterTrainingRuntime",
    }
    assert spec["runtimeRef"] == reference
    assert spec["suspend"] is False
    assert spec["managedBy"] == "trainer.kubeflow.org/trainjob-controller"


def test_more_than_this_machine_has_is_refused(api: Api) -> None:
    with pytest.raises(ApiError, match=r"its pods ask for .* \(3 pods together\)"):
        create(api, numNodes=3, resourcesPerNode={"requests": {"cpu": "500"}})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda spec: spec["mlPolicy"].update(mpi={}), "has the policy mpi"),
        (
            lambda spec: spec["template"]["spec"].update(failurePolicy={"maxRestarts": 2}),
            "has a failurePolicy",
        ),
        (
            lambda spec: spec["template"]["spec"]["replicatedJobs"].insert(0, {"name": "launcher"}),
            "has the jobs launcher, node",
        ),
    ],
)
def test_a_runtime_that_cannot_run_here_is_refused(api: Api, change: Any, words: str) -> None:
    runtime = {**objects.copy(TORCH_DISTRIBUTED), "metadata": {"name": "other"}}
    change(runtime["spec"])
    api.create(CLUSTER_TRAINING_RUNTIME, runtime)
    with pytest.raises(ApiError, match=words):
        create(api, "other")


def test_a_job_of_another_controller_is_not_checked_for_this_machine(api: Api) -> None:
    spec = {
        "runtimeRef": {"name": "torch-distributed"},
        "managedBy": "kueue.x-k8s.io/multikueue",
        "trainer": {"resourcesPerNode": {"requests": {"cpu": "500"}}},
    }
    api.create(TRAINJOB, {"metadata": {"name": "j", "namespace": "default"}, "spec": spec})
