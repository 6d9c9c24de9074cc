"""The status of a PyTorchJob, with the operator's rules for its conditions.

Source: kubeflow/trainer v1.9.3, `pkg/util/status`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from kfp_pytorch.launcher.constants import PYTORCHJOB
from kfp_pytorch.local.apiserver import objects

Object = dict[str, Any]


class Status:
    """The status of a job while it is being worked on, with the operator's rules for conditions."""

    def __init__(self, status: Object, now: datetime) -> None:
        self.object = objects.copy(status)
        self._now = objects.timestamp(now)

    def is_true(self, condition: str) -> bool:
        """Whether the job has a condition of this type and it is True."""
        return any(
            each["type"] == condition and each["status"] == "True"
            for each in self.object.get("conditions") or []
        )

    @property
    def finished(self) -> bool:
        """Whether the job has succeeded or failed."""
        return self.is_true("Succeeded") or self.is_true("Failed")

    def set(self, condition: str, reason: str, message: str, value: str = "True") -> None:
        """Set a condition; does nothing once the job has failed."""
        conditions: list[Object] = self.object.get("conditions") or []
        if self.is_true("Failed"):
            return
        new = {
            "type": condition,
            "status": value,
            "reason": f"{PYTORCHJOB.kind}{reason}",
            "message": message,
            "lastUpdateTime": self._now,
            "lastTransitionTime": self._now,
        }
        current = next((each for each in conditions if each["type"] == condition), None)
        if current and current["status"] == value:
            if current["reason"] == new["reason"]:
                return
            new["lastTransitionTime"] = current["lastTransitionTime"]
        self.object["conditions"] = [*_without(conditions, condition), new]

    def complete(self) -> None:
        """Note when the job finished, unless that is known."""
        self.object.setdefault("completionTime", self._now)

    def start(self, *, again: bool = False) -> None:
        """Note when the job started, unless that is known or it starts again."""
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
