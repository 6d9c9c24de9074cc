"""The scheduler's decisions and messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import EVENT, POD
from kfp_pytorch.local.apiserver.store.api import ApiError
from kfp_pytorch.local.controllers.kubernetes.scheduler import misfit

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
    message = misfit(make_pod(requests), NODE, map(make_pod, taken), [])
    assert message.partition(". no new claims")[0] == (
        f"0/1 nodes are available: {lacking}" if lacking else ""
    )


@pytest.mark.parametrize(
    ("gpus", "why"),
    [
        ("0", "Preemption is not helpful for scheduling."),
        ("1", "No preemption victims found for incoming pod."),
    ],
)
def test_the_message_says_whether_preemption_could_help(gpus: str, why: str) -> None:
    node = {**NODE, "status": {"allocatable": {"nvidia.com/gpu": gpus, "pods": "9"}}}
    asks = {"nvidia.com/gpu": "1"}
    assert misfit(make_pod(asks), node, [make_pod(asks)], []) == (
        "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. no new claims to deallocate, "
        f"preemption: 0/1 nodes are available: 1 {why}"
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
    message = misfit(make_pod(**spec), NODE, [], [])
    assert ("didn't match Pod's node affinity/selector" in message) is not fits


def test_a_missing_claim_is_named() -> None:
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    assert 'persistentvolumeclaim "c" not found' in misfit(make_pod(volumes=volumes), NODE, [], [])
    assert misfit(make_pod(volumes=volumes), NODE, [], ["c"]) == ""
    two = [*volumes, {"name": "w", "persistentVolumeClaim": {"claimName": "d"}}]
    assert misfit(make_pod(volumes=two), NODE, [], iter(["c", "d"])) == ""


def test_sidecars_count_beside_what_comes_after_them() -> None:
    def asks(cpu: str, **more: Any) -> Object:
        return {"name": "i", "resources": {"requests": {"cpu": cpu}}, **more}

    beside = asks("2", restartPolicy="Always")
    for initial, message in (
        ([beside], ""),
        ([beside, asks("2")], ""),
        ([asks("4"), beside], ""),
        ([beside, asks("3")], "Insufficient cpu"),
        ([beside, asks("1", restartPolicy="Always")], "Insufficient cpu"),
    ):
        verdict = misfit(make_pod({"cpu": "2"}, initContainers=initial), NODE, [], [])
        assert (message in verdict) if message else not verdict


def test_the_schedulers_events_have_a_series_and_no_count(
    on_controllers: Callable[..., None],
) -> None:
    async def story(local: Any) -> None:
        gpu = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
        local.create_pod("p", local.python("pass"), **gpu)
        first = await local.event("p", "FailedScheduling")
        assert first["eventTime"]
        assert not {"count", "lastTimestamp", "series"} & set(first)
        local.create_pod("other", local.python("pass"))
        await local.phase("other", "Succeeded")  # the scheduler tries the first one again
        again = await local.until(EVENT, first["metadata"]["name"], lambda event: "series" in event)
        assert again["series"]["count"] == 2

    on_controllers(story)


def test_a_pod_with_scheduling_gates_waits_until_they_are_removed(
    on_controllers: Callable[..., None],
) -> None:
    async def story(local: Any) -> None:
        gates = [{"name": "example.com/queue"}]
        local.create_pod("p", local.python("pass"), SchedulingGates=gates)
        gated = await local.until(POD, "p", lambda pod: pod["status"].get("conditions"))
        (condition,) = gated["status"]["conditions"]
        assert condition["reason"] == "SchedulingGated"
        for wrong in ([*gates, {"name": "example.com/more"}], [{"name": "example.com/other"}]):
            with pytest.raises(ApiError, match="pod updates may not change fields"):
                local.api.mutate(
                    POD, "default", "p", lambda o, w=wrong: o["spec"].update(schedulingGates=w)
                )
        local.api.mutate(POD, "default", "p", lambda o: o["spec"].pop("schedulingGates") and None)
        await local.phase("p", "Succeeded")

    on_controllers(story)


def test_the_largest_init_container_counts_if_it_needs_more_than_all_others() -> None:
    initial = [{"name": "i", "resources": {"requests": {"cpu": "5"}}}]
    assert "Insufficient cpu" in misfit(
        make_pod({"cpu": "1"}, initContainers=initial), NODE, [], []
    )
