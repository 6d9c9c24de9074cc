"""The shape of a pipeline package, as KFP's own messages define it.

protobuf's reader of JSON takes an empty string for an empty message and says of most else only
that an `int` is not iterable; so the messages are walked here first, for the place and the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import kfp
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2 as messages

_MAPPING = "a mapping"
# KFP keeps it as a message without fields of its own, though it has them.
DEPLOYMENT = "ml_pipelines.PipelineSpec.deployment_spec"
_PLATFORM = "the platform's part"
# Characters of a wrong value that a message shows.
_SHOWN = 60


def problem(spec: Any, platform: Any) -> str:
    """Says what of a package has another shape than KFP reads, and where; nothing when it is whole.

    `platform`: the platform's part; empty when there is none.
    """
    try:
        found = [
            *_misfits(spec, messages.PipelineSpec.DESCRIPTOR, ""),
            *_misfits(platform, messages.PlatformSpec.DESCRIPTOR, _PLATFORM),
        ] or list(_of_kubernetes(platform))
    except RecursionError:
        return "a part of it is within itself, or nested too deep"
    return found[0] if found else _unread(spec, platform)


def kubernetes_settings(platform: dict[str, Any]) -> dict[str, Any]:
    """Returns what `kfp.kubernetes` sets on the pods of steps."""
    kubernetes = platform.get("platforms", {}).get("kubernetes", {})
    found: dict[str, Any] = kubernetes.get("deploymentSpec", {}).get("executors", {})
    return found


def _of_kubernetes(platform: dict[str, Any]) -> Iterator[str]:
    """Yields what does not fit of these settings; those of another platform may be anything."""
    # It comes with all of kfp.kubernetes, which what only reads the settings does not need.
    from kfp.kubernetes.kubernetes_executor_config_pb2 import KubernetesExecutorConfig

    for label, settings in kubernetes_settings(platform).items():
        where = f"{_PLATFORM}.platforms.kubernetes.deploymentSpec.executors.{label}"
        yield from _misfits(settings, KubernetesExecutorConfig.DESCRIPTOR, where)


def _unread(spec: dict[str, Any], platform: dict[str, Any]) -> str:
    """Says what KFP's reader refuses though its shape is right, such as two values for one."""
    parts = (
        (spec, messages.PipelineSpec()),
        (spec.get("deploymentSpec", {}), messages.PipelineDeploymentConfig()),
        (platform, messages.PlatformSpec()),
    )
    try:
        for written, message in parts:
            json_format.ParseDict(written, message)
    except (json_format.ParseError, OverflowError) as error:
        return str(error).partition("\n")[0].rstrip(".")
    return ""


def _misfits(value: Any, descriptor: Any, where: str) -> Iterator[str]:
    """Yields what does not fit a message, each with its place."""
    name = descriptor.full_name
    if name.startswith("google.protobuf."):
        if name == "google.protobuf.Struct" and not isinstance(value, dict):
            yield _no(value, _MAPPING, where)
        yield from _not_json(value, where)
        return
    if not isinstance(value, dict):
        yield _no(value, _MAPPING, where)
        return
    fields = {field.json_name: field for field in descriptor.fields}
    for key, item in value.items():
        if key in fields:
            yield from _field_misfits(item, fields[key], _below(where, key))
        else:
            place = where or "the pipeline"
            yield f"{place} has {key!r}, which KFP {kfp.__version__} does not know"


def _field_misfits(value: Any, field: Any, where: str) -> Iterator[str]:
    entry = field.message_type
    if entry and entry.GetOptions().map_entry:
        if not isinstance(value, dict):
            yield _no(value, _MAPPING, where)
            return
        for key, item in value.items():
            if not isinstance(key, str):
                yield f"{where} has the key {key!r}, which is no text"
            yield from _item_misfits(item, entry.fields_by_name["value"], _below(where, key))
    elif field.is_repeated:
        if not isinstance(value, list):
            yield _no(value, "a list", where)
            return
        for index, item in enumerate(value):
            yield from _item_misfits(item, field, f"{where}[{index}]")
    else:
        yield from _item_misfits(value, field, where)


def _item_misfits(value: Any, field: Any, where: str) -> Iterator[str]:
    message = field.message_type
    if field.full_name == DEPLOYMENT:
        message = messages.PipelineDeploymentConfig.DESCRIPTOR
    if message:
        yield from _misfits(value, message, where)
    elif field.enum_type:
        names = field.enum_type.values_by_name
        if not isinstance(value, str) or value not in names:
            yield _no(value, f"one of {', '.join(list(names)[1:])}", where)
    elif field.cpp_type == field.CPPTYPE_STRING:
        if not isinstance(value, str):
            yield _no(value, "text", where)
    elif field.cpp_type == field.CPPTYPE_BOOL:
        if not isinstance(value, bool):
            yield _no(value, "true or false", where)
    elif not isinstance(value, int | float | str) or isinstance(value, bool):
        # JSON has whole numbers of 64 bits as text.
        yield _no(value, "a number", where)


def _not_json(value: Any, where: str) -> Iterator[str]:
    """Yields what a value that a person gave holds and JSON cannot."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                yield f"{where} has the key {key!r}, which is no text"
            yield from _not_json(item, _below(where, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _not_json(item, f"{where}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield _no(value, "a finite number", where)
    elif not isinstance(value, str | int | float | None):
        yield _no(value, "a value that JSON has", where)


def _below(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)


def _no(value: Any, wanted: str, where: str) -> str:
    shown = "null" if value is None else repr(value)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    return f"{where or 'the pipeline'} is {shown}, where {wanted} belongs"
