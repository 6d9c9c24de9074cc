"""Garbage collection of dependents, and the deletion of what is in a terminating namespace."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

from kfp_pytorch.launcher.constants import EVENT, Kind
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import ApiError, Object
from kfp_pytorch.local.apiserver.registry import NAMESPACE
from kfp_pytorch.local.apiserver.store.api import DELETED, FOREGROUND, ORPHAN, Api, Change

_EVENT_TTL = timedelta(hours=1)
_EVENT_SWEEP_S = 60.0
# Kubernetes' namespace controller waits so long.
_NAMESPACE_DELAY_S = 5.0

_Key = tuple[Kind, str, str]


class Collector:
    """Deletes objects that have lost their owners, and those of terminating namespaces."""

    def __init__(self, api: Api, *, namespace_delay_s: float = _NAMESPACE_DELAY_S) -> None:
        self._api = api
        self._namespace_delay_s = namespace_delay_s
        self._dependents: defaultdict[str, set[_Key]] = defaultdict(set)
        self._alive: set[str] = set()
        self._queue: asyncio.Queue[_Key] = asyncio.Queue()
        self._queued: set[_Key] = set()
        # Terminating namespaces, and whether their delay is over.
        self._terminating: dict[_Key, bool] = {}
        for resource in api.registry:
            for obj in api.snapshot(resource.kind):
                self._index(resource.kind, obj, None)
        api.on_change(self._changed)

    async def run(self) -> None:
        """Runs until it is cancelled."""
        sweep = asyncio.create_task(self._sweep_events())
        try:
            while True:
                key = await self._queue.get()
                self._queued.discard(key)
                self._work(key)
                # Requests are handled between two of many deletions.
                await asyncio.sleep(0)
        finally:
            sweep.cancel()

    def _changed(self, kind: Kind, change: Change) -> None:
        obj, uid = change.object, objects.metadata(change.object)["uid"]
        if change.type != DELETED:
            self._index(kind, obj, change.previous)
            return
        self._alive.discard(uid)
        self._terminating.pop(_key(kind, obj), None)
        for owner in objects.owners(obj):
            self._forget(owner["uid"], _key(kind, obj))
        for key in list(self._dependents.get(uid, ())):
            self._enqueue(key)
        for owner in objects.owners(obj):
            self._enqueue_owner(owner, objects.namespace(obj))
        namespace = (NAMESPACE, "", objects.namespace(obj))
        if self._terminating.get(namespace):
            self._enqueue(namespace)

    def _index(self, kind: Kind, obj: Object, previous: Object | None) -> None:
        key = _key(kind, obj)
        self._alive.add(objects.metadata(obj)["uid"])
        now_owned = {owner["uid"] for owner in objects.owners(obj)}
        for owner in objects.owners(previous or {}):
            if owner["uid"] not in now_owned:
                self._forget(owner["uid"], key)
        for uid in now_owned:
            self._dependents[uid].add(key)
        if kind == NAMESPACE and objects.is_terminating(obj):
            self._delay_emptying(key)
        elif objects.is_terminating(obj) or not now_owned <= self._alive:
            self._enqueue(key)

    def _forget(self, uid: str, key: _Key) -> None:
        found = self._dependents.get(uid)
        if found is not None:
            found.discard(key)
            if not found:
                del self._dependents[uid]

    def _enqueue(self, key: _Key) -> None:
        if key not in self._queued:
            self._queued.add(key)
            self._queue.put_nowait(key)

    def _delay_emptying(self, key: _Key) -> None:
        def empty() -> None:
            if key in self._terminating:
                self._terminating[key] = True
                self._enqueue(key)

        if key not in self._terminating:
            self._terminating[key] = False
            asyncio.get_running_loop().call_later(self._namespace_delay_s, empty)

    def _enqueue_owner(self, owner: Object, namespace: str) -> None:
        for resource in self._api.registry:
            kind = resource.kind
            if (kind.kind, kind.api_version) == (owner["kind"], owner["apiVersion"]):
                self._enqueue((kind, namespace if resource.namespaced else "", owner["name"]))

    def _work(self, key: _Key) -> None:
        obj = self._api.find(*key)
        if obj is None:
            return
        try:
            if objects.owners(obj):
                self._check_owners(key, obj)
            if objects.is_terminating(obj):
                self._finish(key, obj)
        except ApiError:
            # It has changed meanwhile, and is queued again.
            return

    def _check_owners(self, key: _Key, obj: Object) -> None:
        owners = objects.owners(obj)
        left = [owner for owner in owners if owner["uid"] in self._alive]
        if not left:
            self._api.delete(*key, uid=objects.metadata(obj)["uid"])
        elif len(left) < len(owners):
            self._set(key, "ownerReferences", left)

    def _finish(self, key: _Key, obj: Object) -> None:
        held = objects.finalizers(obj)
        if key[0] == NAMESPACE:
            self._empty_namespace(key, obj)
        elif ORPHAN in held:
            self._orphan(objects.metadata(obj)["uid"])
            self._set(key, "finalizers", [item for item in held if item != ORPHAN])
        elif FOREGROUND in held and not self._delete_dependents(objects.metadata(obj)["uid"]):
            self._set(key, "finalizers", [item for item in held if item != FOREGROUND])

    def _delete_dependents(self, uid: str) -> bool:
        """Deletes the dependents of an owner; returns whether any blocks its deletion."""
        blocking = False
        for key in list(self._dependents.get(uid, ())):
            obj = self._api.find(*key)
            if obj is None:
                continue
            if not objects.is_terminating(obj):
                self._api.delete(*key, propagation="Foreground")
                obj = self._api.find(*key)
            owner = next((o for o in objects.owners(obj or {}) if o["uid"] == uid), {})
            blocking = blocking or bool(owner.get("blockOwnerDeletion"))
        return blocking

    def _orphan(self, uid: str) -> None:
        for key in list(self._dependents.get(uid, ())):
            obj = self._api.find(*key)
            if obj is not None:
                kept = [owner for owner in objects.owners(obj) if owner["uid"] != uid]
                self._set(key, "ownerReferences", kept)

    def _empty_namespace(self, key: _Key, obj: Object) -> None:
        name, left = objects.name(obj), 0
        for resource in self._api.registry:
            if not resource.namespaced:
                continue
            for item in self._api.snapshot(resource.kind, name):
                if not objects.is_terminating(item):
                    self._api.delete(resource.kind, name, objects.name(item))
                if self._api.find(resource.kind, name, objects.name(item)) is not None:
                    left += 1
        if not left:
            self._api.mutate(*key, lambda found: found["spec"].update(finalizers=[]))

    def _set(self, key: _Key, field: str, value: Sequence[object]) -> None:
        self._api.mutate(*key, lambda found: found["metadata"].update({field: list(value)}))

    async def _sweep_events(self) -> None:
        while True:
            await asyncio.sleep(_EVENT_SWEEP_S)
            limit = self._api.clock() - _EVENT_TTL
            for event in self._api.snapshot(EVENT):
                if _last_written(event) < limit:
                    self._api.delete(EVENT, objects.namespace(event), objects.name(event))


def _last_written(event: Object) -> datetime:
    """When an event was last written: as a rule it was last seen then.

    It was not seen before it was created, whatever a client says: etcd's lease counts from the
    write.
    """
    created = datetime.fromisoformat(event["metadata"]["creationTimestamp"])
    seen = event.get("lastTimestamp")
    return max(created, datetime.fromisoformat(seen)) if seen else created


def _key(kind: Kind, obj: Object) -> _Key:
    return kind, objects.namespace(obj), objects.name(obj)
