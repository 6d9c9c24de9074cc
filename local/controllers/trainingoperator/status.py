"""The status of a job, with the operator's rules for its conditions.

Source: kubeflow/trainer v1.9.3, `pkg/util/status`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from kfp_pytorch.launcher.constants import Kind
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.controllers.kubernetes.status import condition as find


class Status:
    """The status of a job of a kind during a reconciliation."""

    def __init__(self, kind: Kind, status: Object, now: datetime) -> None:
        self._kind = kind.kind
        self.object = objects.copy(status)
        self._now = objects.timestamp(now)

    def is_true(self, condition: str) -> bool:
        """Whether the job has a condition of this type and it is True."""
        return bool(find({"status": self.object}, condition).get("status") == "True")

    @property
    def finished(self) -> bool:
        """Whether the job has succeeded or failed."""
        return self.is_true("Succeeded") or self.is_true("Failed")

    def replicas(self) -> Iterable[Object]:
        """The counts of each replica type."""
        return (self.object.get("replicaStatuses") or {}).values()

    def set(self, condition: str, reason: str, message: str, value: str = "True") -> None:
        """Set a condition; does nothing once the job has failed."""
        conditions: list[Object] = self.object.get("conditions") or []
        if self.is_true("Failed"):
            return
        new = {
            "type": condition,
            "status": value,
            "reason": f"{self._kind}{reason}",
            "message": message,
            "lastUpdateTime": self._now,
            "lastTransitionTime": self._now,
        }
        current = find({"status": self.object}, condition)
        if current.get("status") == value:
            if current["reason"] == new["reason"]:
                return
            new["lastTransitionTime"] = current["lastTransitionTime"]
        self.object["conditions"] = [*_without(conditions, condition), new]

    def complete(self) -> None:
        """Set the completion time, unless it is set."""
        self.object.setdefault("completionTime", self._now)

    def start(self, *, again: bool = False) -> None:
        """Set the start time, unless it is set and the job does not start again."""
        if again or "startTime" not in self.object:
            self.object["startTime"] = self._now


def _without(conditions: list[Object], coming: str) -> Iterator[Object]:
    replaced = {"Restarting": "Running", "Running": "Restarting"}.get(coming)
    for condition in conditions:
        if condition["type"] in (coming, replaced):
            continue
        if coming in ("Failed", "Succeeded") and condition["type"] == "Running":
            condition = {**condition, "status": "False"}
        yield condition
