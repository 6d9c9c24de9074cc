"""The objects of the API, and how they are read, written and watched."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from kfp_pytorch.launcher.constants import POD, Kind
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import ApiError, Object, already_exists, conflict, not_found
from kfp_pytorch.local.apiserver.registry import NAMESPACE, Registry, Resource
from kfp_pytorch.local.apiserver.store import changes
from kfp_pytorch.local.apiserver.store.changes import ADDED, DELETED, MODIFIED, Change, Subscription
from kfp_pytorch.local.apiserver.validation import admission

ObjectList = list[Object]

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
_PROPAGATION_FINALIZERS = {"Foreground": FOREGROUND, "Orphan": ORPHAN}
_NAMESPACES = ("default", "kube-system", "kube-public")


class Api:
    """The objects of one cluster.

    Every method runs to its end on the event loop's thread, so writes are atomic. Arguments and
    results are copies. Every method raises `ApiError` where a real server answers with an error,
    with the same message. `history`: the changes of each kind that are kept for resumed watches.
    """

    def __init__(
        self,
        registry: Registry | None = None,
        *,
        clock: objects.Clock = objects.now,
        first_revision: int = 1000,
        history: int = 4096,
    ) -> None:
        self.registry = registry or Registry()
        self.clock = clock
        self.revision = first_revision
        self._first_revision = first_revision
        self._history = history
        self._tables: dict[Kind, changes.Table] = {}
        self._sinks: list[Callable[[Kind, Change], None]] = []
        self._webhooks: dict[Kind, list[Callable[[Object], None]]] = {}
        self._mutating_webhooks: dict[Kind, list[Callable[[Object], None]]] = {}
        for name in _NAMESPACES:
            self.create(NAMESPACE, {"metadata": {"name": name}})

    def on_change(self, sink: Callable[[Kind, Change], None]) -> None:
        """Calls `sink` at every write, of whatever kind, before the write returns."""
        self._sinks.append(sink)

    def add_webhook(self, kind: Kind, hook: Callable[[Object], None]) -> None:
        """Calls `hook` with every object before it is stored; it may raise `errors.denied`."""
        self._webhooks.setdefault(kind, []).append(hook)

    def add_mutating_webhook(self, kind: Kind, hook: Callable[[Object], None]) -> None:
        """Lets `hook` change every new object of a kind before it is checked."""
        self._mutating_webhooks.setdefault(kind, []).append(hook)

    # Reading

    def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """The store's own object, not to be changed, or None."""
        return self._table(kind).objects.get(self._key(kind, namespace, name))

    def existing(self, kind: Kind, namespace: str, name: str) -> Object:
        """The store's own object, not to be changed. Raises ApiError: 404 when it is not there."""
        found = self.find(kind, namespace, name)
        if found is None:
            raise not_found(kind, name)
        return found

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """One object. Raises ApiError: 404 when it is not there."""
        return objects.copy(self.existing(kind, namespace, name))

    def snapshot(self, kind: Kind, namespace: str | None = None) -> ObjectList:
        """The store's own objects, not to be changed, by namespace and name."""
        table = self._table(kind).objects
        keys = sorted(key for key in table if namespace in (None, key[0]))
        return [table[key] for key in keys]

    def list(
        self, kind: Kind, namespace: str | None = None, labels: dict[str, str] | None = None
    ) -> ObjectList:
        """The objects of a kind that have these labels, by namespace (None for all) and name."""
        wanted = (labels or {}).items()
        return [
            objects.copy(obj)
            for obj in self.snapshot(kind, namespace)
            if wanted <= objects.labels(obj).items()
        ]

    def watch(self, kind: Kind, namespace: str | None = None) -> changes.Watch:
        """ADDED for each object that exists, then every change, without end."""
        return changes.Watch(self.subscribe(kind, namespace))

    def subscribe(
        self, kind: Kind, namespace: str | None = None, since: int | None = None
    ) -> Subscription:
        """The changes of a kind, not copied, after the resourceVersion `since`.

        None begins with ADDED for each object. Raises ApiError: 410, they are forgotten.
        """
        table = self._table(kind)
        if since is None:
            initial = [
                Change(ADDED, int(objects.metadata(obj)["resourceVersion"]), obj)
                for obj in self.snapshot(kind, namespace)
            ]
        else:
            initial = table.since(since)
        subscription = Subscription(namespace, initial)
        table.watchers.add(subscription)
        return subscription

    def known_since(self, kind: Kind) -> int:
        """The oldest resourceVersion from which a watch can resume."""
        return self._table(kind).forgotten

    # Writing

    def create(self, kind: Kind, obj: Object, *, dry_run: bool = False) -> Object:
        """Creates an object in the namespace of its metadata."""
        resource = self.registry.of(kind)
        made = admission.new_object(resource, obj, self.clock())
        self._check_namespace(resource, made)
        for hook in self._mutating_webhooks.get(kind, ()):
            hook(made)
        admission.check_new(resource, made)
        namespace, name = objects.namespace(made), objects.name(made)
        if self.find(kind, namespace, name) is not None:
            raise already_exists(kind, name)
        self._ask_webhooks(kind, made)
        if not dry_run:
            self._write(kind, ADDED, made, None)
        return objects.copy(made)

    def update(
        self, kind: Kind, obj: Object, subresource: str = "", *, dry_run: bool = False
    ) -> Object:
        """Writes an object that was read before; a resourceVersion must be the current one.

        `subresource`: `status` writes the status and nothing else; empty writes all but it.
        """
        resource = self.registry.of(kind)
        old = self.existing(kind, objects.namespace(obj), objects.name(obj))
        new = admission.changed_object(resource, old, obj, subresource)
        if new == old:
            return objects.copy(old)
        if subresource != "status" and not objects.is_terminating(new):
            self._ask_webhooks(kind, new)
        if not dry_run:
            if objects.is_terminating(new) and not self._held(resource, new):
                self._remove(kind, new)
            else:
                self._write(kind, MODIFIED, new, old)
        return objects.copy(new)

    def mutate(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        fn: Callable[[Object], Object | None],
        subresource: str = "",
    ) -> Object:
        """Reads an object, lets `fn` change it (in place, or by returning another), writes it."""
        obj = self.get(kind, namespace, name)
        changed = fn(obj)
        return self.update(kind, obj if changed is None else changed, subresource)

    def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        propagation: str = "Background",
        uid: str = "",
        *,
        grace: int | None = None,
        resource_version: str = "",
        dry_run: bool = False,
    ) -> Object:
        """Deletes an object, or marks it while finalizers or a pod's grace period remain.

        A pod that is bound to a node and has not ended is marked with a deletionTimestamp, as in
        a real cluster. The kubelet stops its containers and then deletes it with `grace=0`. `uid`
        and `resource_version` are preconditions. Returns the object as it was last, or is marked.
        """
        resource = self.registry.of(kind)
        old = self.existing(kind, namespace, name)
        _check_preconditions(kind, old, uid, resource_version)
        seconds = admission.pod_grace(old, grace) if kind == POD else 0
        new = self._marked(resource, old, propagation, seconds)
        if not dry_run:
            if not self._held(resource, new):
                self._remove(kind, new)
            elif new != old:
                self._write(kind, MODIFIED, new, old)
        return objects.copy(new)

    def _marked(self, resource: Resource, old: Object, propagation: str, grace: int) -> Object:
        new = objects.copy(old)
        meta = new["metadata"]
        finalizer = _PROPAGATION_FINALIZERS.get(propagation)
        if finalizer and finalizer not in objects.finalizers(new):
            meta["finalizers"] = [*objects.finalizers(new), finalizer]
        if not objects.is_terminating(old):
            if resource.generation:
                meta["generation"] = meta.get("generation", 0) + 1
            if resource.kind == NAMESPACE:
                new["status"] = {**(new.get("status") or {}), "phase": "Terminating"}
        elif grace >= meta.get("deletionGracePeriodSeconds", 0):
            return new
        meta["deletionTimestamp"] = objects.timestamp(self.clock() + timedelta(seconds=grace))
        meta["deletionGracePeriodSeconds"] = grace
        return new

    def _held(self, resource: Resource, obj: Object) -> bool:
        """Whether finalizers or a grace period keep an object that is terminating."""
        grace = objects.metadata(obj).get("deletionGracePeriodSeconds", 0)
        kept = (obj.get("spec") or {}).get("finalizers") if resource.kind == NAMESPACE else None
        return bool(objects.finalizers(obj) or kept or grace > 0)

    # The store

    def _table(self, kind: Kind) -> changes.Table:
        if kind not in self._tables:
            self.registry.of(kind)
            self._tables[kind] = changes.Table(self._first_revision, self._history)
        return self._tables[kind]

    def _key(self, kind: Kind, namespace: str, name: str) -> changes.Key:
        return (namespace if self.registry.of(kind).namespaced else "", name)

    def _check_namespace(self, resource: Resource, obj: Object) -> None:
        if not resource.namespaced:
            return
        name = objects.namespace(obj)
        found = self.existing(NAMESPACE, "", name)
        if objects.is_terminating(found):
            raise admission.terminating(resource.kind, objects.name(obj), name)

    def _ask_webhooks(self, kind: Kind, obj: Object) -> None:
        for hook in self._webhooks.get(kind, ()):
            hook(objects.copy(obj))

    def _write(self, kind: Kind, event: str, obj: Object, previous: Object | None) -> None:
        self.revision += 1
        obj["metadata"]["resourceVersion"] = str(self.revision)
        key = self._key(kind, objects.namespace(obj), objects.name(obj))
        self._table(kind).objects[key] = obj
        self._record(kind, Change(event, self.revision, obj, previous))

    def _remove(self, kind: Kind, obj: Object) -> None:
        self.revision += 1
        key = self._key(kind, objects.namespace(obj), objects.name(obj))
        previous = self._table(kind).objects.pop(key)
        last = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.revision)}}
        self._record(kind, Change(DELETED, self.revision, last, previous))

    def _record(self, kind: Kind, change: Change) -> None:
        self._table(kind).record(change)
        for sink in self._sinks:
            sink(kind, change)


def _check_preconditions(kind: Kind, obj: Object, uid: str, resource_version: str) -> None:
    meta = objects.metadata(obj)
    if uid and uid != meta["uid"]:
        why = (
            f"the UID in the precondition ({uid}) does not match the UID in record "
            f"({meta['uid']}). The object might have been deleted and then recreated"
        )
        raise conflict(kind, meta["name"], why)
    if resource_version and resource_version != meta["resourceVersion"]:
        why = (
            f"the ResourceVersion in the precondition ({resource_version}) does not match the "
            f"ResourceVersion in record ({meta['resourceVersion']}). The object might have been "
            "modified"
        )
        raise conflict(kind, meta["name"], why)


__all__ = ["ADDED", "DELETED", "MODIFIED", "Api", "ApiError", "Change", "Subscription"]
