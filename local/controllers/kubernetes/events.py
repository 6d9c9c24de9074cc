"""Events about objects; one that is repeated is counted."""

from __future__ import annotations

import logging
import secrets
from collections import OrderedDict

from kfp_pytorch.launcher.constants import EVENT
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.store.api import Api, ApiError

_REMEMBERED = 4096
_LOG = logging.getLogger(__name__)


class Recorder:
    """Records events as one component, such as `kubelet`; a kubelet has a host."""

    def __init__(self, api: Api, component: str, host: str = "") -> None:
        self._api = api
        self._component, self._host = component, host
        # The object and content of an event → its name.
        self._recorded: OrderedDict[tuple[str, ...], str] = OrderedDict()

    def event(
        self, about: Object, type_: str, reason: str, message: str, field_path: str = ""
    ) -> None:
        """Record an event, or count it once more; one that the API refuses is dropped."""
        key = (objects.metadata(about)["uid"], type_, reason, message, field_path)
        namespace = objects.namespace(about) or "default"
        try:
            known = self._recorded.get(key)
            if known and self._api.find(EVENT, namespace, known):
                self._api.mutate(EVENT, namespace, known, self._count)
            else:
                created = self._api.create(EVENT, self._new(about, namespace, *key[1:]))
                self._remember(key, objects.name(created))
        except ApiError as error:
            _LOG.debug("event %s about %s was refused: %s", reason, objects.name(about), error)

    def _remember(self, key: tuple[str, ...], name: str) -> None:
        self._recorded[key] = name
        if len(self._recorded) > _REMEMBERED:
            self._recorded.popitem(last=False)

    def _new(
        self, about: Object, namespace: str, type_: str, reason: str, message: str, field_path: str
    ) -> Object:
        meta = objects.metadata(about)
        involved = {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "namespace": objects.namespace(about),
            "name": meta["name"],
            "uid": meta["uid"],
            "resourceVersion": meta.get("resourceVersion", ""),
            "fieldPath": field_path,
        }
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{meta['name']}.{secrets.token_hex(8)}", "namespace": namespace},
            "involvedObject": {key: value for key, value in involved.items() if value},
            "type": type_,
            "reason": reason,
            "message": message,
            "reportingComponent": self._component,
            **self._first(reason),
        }

    def _first(self, _reason: str) -> Object:
        """The fields of a new event about its time and its source."""
        now = objects.timestamp(self._api.clock())
        host = {"host": self._host} if self._host else {}
        return {
            "source": {"component": self._component, **host},
            "reportingInstance": self._host,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }

    def _count(self, event: Object) -> None:
        event["count"] = event.get("count", 1) + 1
        event["lastTimestamp"] = objects.timestamp(self._api.clock())


class SchedulerRecorder(Recorder):
    """Records events as `events.k8s.io` has them: with neither a count nor a lastTimestamp."""

    def _now(self) -> str:
        return self._api.clock().strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def _first(self, reason: str) -> Object:
        return {
            "source": {},
            "reportingInstance": f"{self._component}-{self._host}",
            "eventTime": self._now(),
            "action": "Binding" if reason == "Scheduled" else "Scheduling",
        }

    def _count(self, event: Object) -> None:
        count = (event.get("series") or {}).get("count", 1) + 1
        event["series"] = {"count": count, "lastObservedTime": self._now()}
