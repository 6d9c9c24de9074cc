"""Placeholders for values of a run that kfp.local does not have: it fails over these."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from kfp_pytorch.local.kfp.task_settings import tasks

RESOURCE_NAME = "{{$.pipeline_job_resource_name}}"
CREATED = "{{$.pipeline_job_create_time_utc}}"
SCHEDULED = "{{$.pipeline_job_schedule_time_utc}}"


def fill_in(spec: dict[str, Any], name: str, created: datetime) -> None:
    """Replaces the placeholders of the run's name and times (scheduled when created)."""
    time = created.strftime("%Y-%m-%dT%H:%M:%SZ")
    known = {RESOURCE_NAME: name, CREATED: time, SCHEDULED: time}
    for task, _ in tasks(spec):
        for source in task.get("inputs", {}).get("parameters", {}).values():
            if "constant" in source.get("runtimeValue", {}):
                value = source["runtimeValue"]["constant"]
                source["runtimeValue"]["constant"] = _filled(value, known)


def _filled(value: Any, known: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {_filled(key, known): _filled(item, known) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, known) for item in value]
    if isinstance(value, str):
        for placeholder, text in known.items():
            value = value.replace(placeholder, text)
    return value
