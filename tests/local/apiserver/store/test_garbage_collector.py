"""What becomes of dependents when their owner goes, and of what lies in a namespace that goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import CONFIG_MAP, EVENT, POD, PYTORCHJOB, WORKFLOW
from kfp_pytorch.local.apiserver.objects import now, timestamp
from kfp_pytorch.local.apiserver.registry import NAMESPACE
from kfp_pytorch.local.apiserver.store import garbage_collector
from kfp_pytorch.local.apiserver.store.api import DELETED, Api, ApiError

Object = dict[str, Any]


def config_map(name: str, *owners: Object, namespace: str = "default", **more: Any) -> Object:
    references = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": True,
        }
        for owner in owners
    ]
    meta = {"name": name, "namespace": namespace, "ownerReferences": references, **more}
    return {"metadata": meta}


def workflow(api: Api, name: str = "w") -> Object:
    return api.create(WORKFLOW, {"metadata": {"name": name, "namespace": "default"}})


def collected(story: Callable[[Api], Any], **settings: float) -> None:
    """Runs a story beside a collector."""

    async def both() -> None:
        api = Api()
        collector = asyncio.create_task(garbage_collector.Collector(api, **settings).run())
        try:
            await asyncio.wait_for(story(api), 120)
        finally:
            collector.cancel()

    asyncio.run(both())


async def gone(api: Api, kind: Any, name: str, namespace: str = "default") -> None:
    async for event, obj in api.watch(kind):
        if event == DELETED and obj["metadata"]["name"] == name:
            return


async def settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def names(api: Api) -> list[str]:
    return [obj["metadata"]["name"] for obj in api.list(CONFIG_MAP)]


def test_dependents_and_theirs_go_after_their_owner() -> None:
    async def story(api: Api) -> None:
        owner = workflow(api)
        child = api.create(CONFIG_MAP, config_map("child", owner))
        api.create(CONFIG_MAP, config_map("grandchild", child))
        api.create(CONFIG_MAP, config_map("stranger"))
        api.delete(WORKFLOW, "default", "w")
        assert names(api) == ["child", "grandchild", "stranger"]
        await settled()
        assert names(api) == ["stranger"]

    collected(story)


def test_a_dependent_of_two_owners_goes_with_the_second() -> None:
    async def story(api: Api) -> None:
        first, second = workflow(api, "a"), workflow(api, "b")
        api.create(CONFIG_MAP, config_map("child", first, second))
        api.delete(WORKFLOW, "default", "a")
        await settled()
        references = api.get(CONFIG_MAP, "default", "child")["metadata"]["ownerReferences"]
        assert [reference["name"] for reference in references] == ["b"]
        api.delete(WORKFLOW, "default", "b")
        await settled()
        assert names(api) == []

    collected(story)


def test_an_object_whose_owner_was_never_there_is_removed() -> None:
    async def story(api: Api) -> None:
        owner = workflow(api)
        api.delete(WORKFLOW, "default", "w")
        api.create(CONFIG_MAP, config_map("late", owner))
        await settled()
        assert names(api) == []

    collected(story)


def test_a_new_owner_of_the_same_name_does_not_adopt_the_old_ones_dependents() -> None:
    async def story(api: Api) -> None:
        api.create(CONFIG_MAP, config_map("child", workflow(api)))
        api.delete(WORKFLOW, "default", "w")
        workflow(api)
        await settled()
        assert names(api) == []

    collected(story)


def test_in_the_foreground_the_owner_waits_for_its_dependents() -> None:
    async def story(api: Api) -> None:
        owner = workflow(api)
        api.create(CONFIG_MAP, config_map("child", owner, finalizers=["held/here"]))
        marked = api.delete(WORKFLOW, "default", "w", "Foreground")
        assert marked["metadata"]["finalizers"] == ["foregroundDeletion"]
        await settled()
        assert api.get(CONFIG_MAP, "default", "child")["metadata"]["deletionTimestamp"]
        assert api.find(WORKFLOW, "default", "w") is not None
        api.mutate(CONFIG_MAP, "default", "child", lambda o: o["metadata"].update(finalizers=[]))
        await settled()
        assert names(api) == []
        assert api.find(WORKFLOW, "default", "w") is None

    collected(story)


def test_orphans_stay_and_forget_their_owner() -> None:
    async def story(api: Api) -> None:
        api.create(CONFIG_MAP, config_map("child", workflow(api)))
        api.delete(WORKFLOW, "default", "w", "Orphan")
        await settled()
        assert api.find(WORKFLOW, "default", "w") is None
        assert "ownerReferences" not in api.get(CONFIG_MAP, "default", "child")["metadata"]

    collected(story)


def test_a_namespace_takes_all_that_is_in_it_and_waits_for_what_is_held() -> None:
    async def story(api: Api) -> None:
        api.create(NAMESPACE, {"metadata": {"name": "n"}})
        api.create(CONFIG_MAP, config_map("a", namespace="n"))
        api.create(CONFIG_MAP, config_map("b", namespace="n", finalizers=["held/here"]))
        spec = {"nodeName": "node", "containers": [{"name": "c", "image": "x"}]}
        api.create(POD, {"metadata": {"name": "p", "namespace": "n"}, "spec": spec})
        marked = api.delete(NAMESPACE, "", "n")
        assert marked["status"]["phase"] == "Terminating"
        with pytest.raises(ApiError, match="it is being terminated") as caught:
            api.create(CONFIG_MAP, config_map("c", namespace="n"))
        assert caught.value.code == 403
        await gone(api, CONFIG_MAP, "a")
        await settled()
        assert api.find(NAMESPACE, "", "n") is not None
        api.mutate(CONFIG_MAP, "n", "b", lambda o: o["metadata"].update(finalizers=[]))
        await settled()
        assert api.find(NAMESPACE, "", "n") is not None
        api.delete(POD, "n", "p", grace=0)
        await settled()
        assert api.find(NAMESPACE, "", "n") is None

    collected(story, namespace_delay_s=0)


def test_the_pods_of_a_job_of_512_nodes_go_with_it() -> None:
    async def story(api: Api) -> None:
        specs = {"Worker": {"template": {"spec": {"containers": [{"name": "c"}]}}}}
        job = {"metadata": {"name": "j", "namespace": "default"}}
        owner = api.create(PYTORCHJOB, {**job, "spec": {"pytorchReplicaSpecs": specs}})
        for index in range(512):
            made = config_map(f"j-worker-{index}", owner)
            made["spec"] = {"containers": [{"name": "c", "image": "x"}]}
            api.create(POD, made)
        api.delete(PYTORCHJOB, "default", "j")
        while api.snapshot(POD):
            await asyncio.sleep(0)

    collected(story)


def test_events_go_an_hour_after_they_were_written_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_collector, "_EVENT_SWEEP_S", 0.01)

    async def story(api: Api) -> None:
        about = {"involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}}
        later = now() + timedelta(minutes=61)
        # A client may say that an event is older than it is.
        seen = {"old": None, "dated-back": "2020-01-01T00:00:00Z", "repeated": timestamp(later)}
        for name, at in seen.items():
            metadata = {"name": name, "namespace": "default"}
            api.create(EVENT, {"metadata": metadata, "lastTimestamp": at, **about})
        await asyncio.sleep(0.1)
        assert len(api.list(EVENT)) == 3
        api.clock = lambda: later
        while len(api.list(EVENT)) > 1:
            await asyncio.sleep(0)
        assert [event["metadata"]["name"] for event in api.list(EVENT)] == ["repeated"]

    collected(story)
