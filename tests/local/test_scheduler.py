"""The scheduler's verdicts, in its own words."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_pytorch.local.controllers.scheduler import misfit

Object = dict[str, Any]

NODE = {
    "metadata": {"name": "local", "labels": {"kubernetes.io/os": "linux", "kind": "small"}},
    "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "3"}},
}


def make_pod(requests: Object | None = None, **spec: Any) -> Object:
    container = {"name": "main", "resources": {"requests": requests or {}}}
    return {"metadata": {"name": "p"}, "spec": {"containers": [container], **spec}}


@pytest.mark.parametrize(
    ("requests", "taken", "lacking"),
    [
        ({"cpu": "4", "memory": "8Gi"}, [], ""),
        ({"cpu": "4001m"}, [], "1 Insufficient cpu"),
        ({"memory": "9Gi", "cpu": "5"}, [], "1 Insufficient cpu, 1 Insufficient memory"),
        ({"cpu": "2"}, [{"cpu": "2"}], ""),
        ({"cpu": "2"}, [{"cpu": "2"}, {"cpu": "1m"}], "1 Insufficient cpu"),
        ({}, [{}, {}, {}], "1 Too many pods"),
        ({"nvidia.com/gpu": "1"}, [], "1 Insufficient nvidia.com/gpu"),
        ({"amd.com/gpu": "0"}, [], ""),
    ],
)
def test_a_pod_fits_where_what_it_requests_is_left(
    requests: Object, taken: list[Object], lacking: str
) -> None:
    words = misfit(make_pod(requests), NODE, map(make_pod, taken), [])
    assert words.partition(". preemption")[0] == (
        f"0/1 nodes are available: {lacking}" if lacking else ""
    )


def expression(key: str, operator: str, *values: str) -> Object:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        ({"nodeSelector": {"kubernetes.io/os": "linux"}}, True),
        ({"nodeSelector": {"gpu": "a100"}}, False),
        ([expression("kind", "In", "small", "large")], True),
        ([expression("kind", "NotIn", "small")], False),
        ([expression("kind", "Exists"), expression("zone", "DoesNotExist")], True),
        ([expression("zone", "Exists")], False),
    ],
)
def test_a_pod_fits_where_the_nodes_labels_are_those_it_selects(spec: Any, fits: bool) -> None:
    if isinstance(spec, list):
        required = {"nodeSelectorTerms": [{"matchExpressions": spec}]}
        affinity = {"requiredDuringSchedulingIgnoredDuringExecution": required}
        spec = {"affinity": {"nodeAffinity": affinity}}
    words = misfit(make_pod(**spec), NODE, [], [])
    assert ("didn't match Pod's node affinity/selector" in words) is not fits


def test_a_claim_that_is_missing_is_named() -> None:
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    assert 'persistentvolumeclaim "c" not found' in misfit(make_pod(volumes=volumes), NODE, [], [])
    assert misfit(make_pod(volumes=volumes), NODE, [], ["c"]) == ""


def test_the_largest_init_container_counts_if_it_needs_more_than_all_others() -> None:
    initial = [{"name": "i", "resources": {"requests": {"cpu": "5"}}}]
    assert "Insufficient cpu" in misfit(
        make_pod({"cpu": "1"}, initContainers=initial), NODE, [], []
    )
