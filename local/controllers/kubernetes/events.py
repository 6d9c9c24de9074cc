"""Events about objects, counted rather than repeated."""

from __future__ import annotations

import logging
import secrets
from collections import OrderedDict
from typing import Any

from kfp_pytorch.launcher.constants import EVENT
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.store.api import Api, ApiError

Object = dict[str, Any]

_REMEMBERED = 4096
_LOG = logging.getLogger(__name__)


class Recorder:
    """Records events as one component of a cluster, such as `kubelet`.

    Args:
        api: Where the events go.
        component: Who reports them.
        host: The node that the component runs on, for a kubelet.
    """

    def __init__(self, api: Api, component: str, host: str = "") -> None:
        self._api = api
        self._source = {"component": component, **({"host": host} if host else {})}
        # What was said → the name of the event that says it.
        self._said: OrderedDict[tuple[str, ...], str] = OrderedDict()

    def event(
        self, about: Object, type_: str, reason: str, message: str, field_path: str = ""
    ) -> None:
        """Record an event, or count it once more if the same was said before.

        An event that the API refuses, as in a namespace that goes away, is lost: events are for
        people, and no controller stops for one.

        Args:
            about: The object that it is about.
            type_: `Normal` or `Warning`.
            reason: Such as `FailedScheduling`.
            message: The words for a person.
            field_path: The part of the object, such as `spec.containers{pytorch}`.
        """
        key = (objects.metadata(about)["uid"], type_, reason, message, field_path)
        namespace = objects.namespace(about) or "default"
        try:
            known = self._said.get(key)
            if known and self._api.find(EVENT, namespace, known):
                self._api.mutate(EVENT, namespace, known, self._count)
            else:
                created = self._api.create(EVENT, self._new(about, namespace, *key[1:]))
                self._remember(key, objects.name(created))
        except ApiError as error:
            _LOG.debug("event %s about %s was refused: %s", reason, objects.name(about), error)

    def _count(self, event: Object) -> None:
        event["count"] = event.get("count", 1) + 1
        event["lastTimestamp"] = objects.timestamp(self._api.clock())

    def _remember(self, key: tuple[str, ...], name: str) -> None:
        self._said[key] = name
        if len(self._said) > _REMEMBERED:
            self._said.popitem(last=False)

    def _new(
        self, about: Object, namespace: str, type_: str, reason: str, message: str, field_path: str
    ) -> Object:
        now = objects.timestamp(self._api.clock())
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
            "metadata": {
                "name": f"{meta['name']}.{secrets.token_hex(8)}",
                "namespace": namespace,
            },
            "involvedObject": {key: value for key, value in involved.items() if value},
            "type": type_,
            "reason": reason,
            "message": message,
            "source": self._source,
            "reportingComponent": self._source["component"],
            "reportingInstance": self._source.get("host", ""),
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
