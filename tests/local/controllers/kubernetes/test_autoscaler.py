"""The autoscaler: replicas within their bounds."""

from __future__ import annotations

import pytest

from kfp_pytorch.launcher.constants import DEPLOYMENT, EVENT
from kfp_pytorch.local.apiserver.registry import AUTOSCALER
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.controllers.kubernetes.autoscaler import SYNC_PERIOD_S, AutoscalerController

META = {"name": "d", "namespace": "default"}


def create(api: Api, replicas: int, least: int, most: int) -> None:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}
    bounds = {"scaleTargetRef": target, "minReplicas": least, "maxReplicas": most}
    api.create(AUTOSCALER, {"metadata": META, "spec": bounds})
    labels = {"app": "d"}
    containers = [{"name": "c", "image": "i"}]
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    api.create(DEPLOYMENT, {"metadata": META, "spec": spec})


@pytest.mark.parametrize(
    ("replicas", "bounds", "wanted", "reason"),
    [
        (1, (2, 4), 2, "below Spec.MinReplicas"),
        (9, (2, 4), 4, "above Spec.MaxReplicas"),
        (3, (2, 4), 3, ""),
    ],
)
def test_replicas_are_brought_within_the_bounds(
    replicas: int, bounds: tuple[int, int], wanted: int, reason: str
) -> None:
    api = Api()
    create(api, replicas, *bounds)
    AutoscalerController(api).reconcile(("default", "d"))
    assert api.get(DEPLOYMENT, "default", "d")["spec"]["replicas"] == wanted
    status = api.get(AUTOSCALER, "default", "d")["status"]
    assert status == {"currentReplicas": replicas, "desiredReplicas": wanted}
    events = [event["message"] for event in api.list(EVENT)]
    message = f"New size: {wanted}; reason: Current number of replicas {reason}"
    assert events == ([message] if reason else [])


def test_an_autoscaler_without_its_deployment_does_nothing() -> None:
    api = Api()
    create(api, 1, 2, 2)
    api.delete(DEPLOYMENT, "default", "d")
    AutoscalerController(api).reconcile(("default", "d"))
    assert "status" not in api.get(AUTOSCALER, "default", "d")


def test_the_shipped_period_is_kubernetes_own() -> None:
    assert SYNC_PERIOD_S == 15.0
