"""The status of a quota: what it limits, and what of that pods use."""

from __future__ import annotations

import pytest

from kfp_pytorch.launcher.constants import POD
from kfp_pytorch.local.apiserver.registry import RESOURCE_QUOTA
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.controllers.kubernetes.quotas import QuotaController

HARD = {"requests.cpu": "4", "limits.memory": "8Gi", "pods": "9", "count/services": "3"}


def pod(api: Api, name: str, phase: str = "Running") -> None:
    resources = {"requests": {"cpu": "500m"}, "limits": {"memory": "1Gi"}}
    containers = [{"name": "c", "image": "i", "resources": resources}]
    obj = {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": containers}}
    api.update(POD, {**api.create(POD, obj), "status": {"phase": phase}}, "status")


@pytest.fixture
def api() -> Api:
    made = Api()
    metadata = {"name": "q", "namespace": "default"}
    made.create(RESOURCE_QUOTA, {"metadata": metadata, "spec": {"hard": HARD}})
    return made


def test_the_pods_that_have_not_ended_are_counted(api: Api) -> None:
    for name, phase in (("a", "Running"), ("b", "Pending"), ("c", "Succeeded")):
        pod(api, name, phase)
    QuotaController(api).reconcile(("default", "q"))
    status = api.get(RESOURCE_QUOTA, "default", "q")["status"]
    assert status["hard"] == HARD
    assert status["used"] == {"requests.cpu": "1", "limits.memory": "2Gi", "pods": "2"}


def test_a_quota_that_is_gone_is_left_alone(api: Api) -> None:
    QuotaController(api).reconcile(("default", "gone"))
    assert "status" not in api.get(RESOURCE_QUOTA, "default", "q")
