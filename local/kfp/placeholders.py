"""Placeholders for values of a run that kfp.local does not have, and those that break a step."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from kfp_pytorch.local.kfp.task_settings import tasks

RESOURCE_NAME = "{{$.pipeline_job_resource_name}}"
CREATED = "{{$.pipeline_job_create_time_utc}}"
SCHEDULED = "{{$.pipeline_job_schedule_time_utc}}"
# Characters of a value that are shown.
_SHOWN = 200
# KFP's reference to a parameter, within a text.
REFERENCE = re.compile(r"\{\{\$\.inputs\.parameters\['([^']+)'\]\}\}")
# In the name of a parameter that KFP adds for a reference.
_ADDED = "pipelinechannel--"


def as_text(value: Any) -> str:
    """Writes a value as KFP puts it in the place of a reference."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value)


def is_unsafe(text: str) -> bool:
    """Whether KFP would change a text, or break the JSON of a step's inputs with it."""
    return json.dumps(text, ensure_ascii=False) != f'"{text}"'


def problem(name: str, text: str) -> str:
    """Says what is wrong with the value of a parameter or output that is unsafe."""
    shown = repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}…"
    return (
        f"{name} is {shown}; KFP puts it as it is into the JSON of a step's "
        "inputs, so it may have no quotation mark, backslash or control character. Pass such a "
        "value whole: as an input of its own, or within a list or dict that a component returns "
        "and that is the whole of the input. Or pass it in a file."
    )


def problem_of(values: dict[str, Any]) -> str:
    """Says which value KFP would put into a text of a step's inputs and break it; else nothing.

    `values`: the step's input parameters, with the references in them.
    """
    for name in sorted(set(REFERENCE.findall("\n".join(_texts(values)))) & values.keys()):
        text = as_text(values[name])
        if is_unsafe(text):
            return problem(name.removeprefix(_ADDED), text)
    return ""


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


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
