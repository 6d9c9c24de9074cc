"""What KFP's API server takes: fields, packages, parameters, schedules.

Read from the sources of KFP 2.17.0: backend/src/apiserver/template/v2_template.go,
server/api_converter.go, server/pipeline_upload_server.go.
"""

from __future__ import annotations

import json
import re
from typing import Any

import kfp_server_api
import yaml
from google.protobuf import json_format
from harness.kfp_api.errors import INVALID, ApiError, UploadError
from kfp.pipeline_spec import pipeline_spec_pb2

Object = dict[str, Any]
_NAME = re.compile(r"^[a-z0-9][a-z0-9-]{0,127}$")
_TYPES: dict[str, tuple[type, ...]] = {
    "NUMBER_DOUBLE": (int, float),
    "NUMBER_INTEGER": (int, float),
    "STRING": (str,),
    "BOOLEAN": (bool,),
    "LIST": (list,),
    "STRUCT": (dict,),
}


def checked_body(text: str, model: str) -> Object:
    """Reads a request's body; a field that its message does not have is refused."""
    try:
        body = json.loads(text)
    except ValueError:
        raise ApiError(INVALID, "proto: syntax error (line 1:1): unexpected token") from None
    unknown = next(_unknown(body, getattr(kfp_server_api, model)), None)
    if unknown is not None:
        at = text.find(f'"{unknown}"') + 1
        raise ApiError(INVALID, f'proto:\u00a0(line 1:{at}): unknown field "{unknown}"')
    return {_snake(key): value for key, value in body.items()}


def _snake(key: str) -> str:
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", key).lower()


def _unknown(body: Any, model: Any) -> Any:
    known = {json_name: attribute for attribute, json_name in model.attribute_map.items()}
    for key, value in body.items():
        name = key if key in known else _snake(key)
        if name not in known:
            yield key
            continue
        kind = model.openapi_types[known[name]]
        if isinstance(value, dict) and kind.startswith("V2beta1"):
            yield from _unknown(value, getattr(kfp_server_api, kind))


def package(text: str, filename: str, failed: str) -> tuple[Object, Object]:
    """Reads an uploaded package as the server does: its specification and that of the platform."""
    if not filename.endswith((".yaml", ".yml", ".json")):
        raise UploadError(INVALID, "Failed to read a pipeline spec file")
    documents = [each for each in yaml.safe_load_all(text) if each is not None]
    try:
        return checked_package(documents)
    except (ValueError, TypeError) as error:
        raise UploadError(INVALID, f"{failed}: invalid v2 pipeline spec: {error}") from None


def checked_package(documents: list[Object]) -> tuple[Object, Object]:
    """Sorts a package's documents; raises ValueError where the server refuses them."""
    specs = [each for each in documents if "pipelineInfo" in each]
    platforms = [each for each in documents if "platforms" in each]
    if len(specs) != 1 or len(platforms) > 1:
        raise ValueError("no pipeline spec is provided")
    message = json_format.ParseDict(specs[0], pipeline_spec_pb2.PipelineSpec())
    if message.schema_version != "2.1.0":
        raise ValueError(f"the pipeline spec has version {message.schema_version}")
    if not _NAME.match(message.pipeline_info.name):
        raise ValueError("pipeline's name must contain only lowercase alphanumeric characters")
    platform = platforms[0] if platforms else {}
    json_format.ParseDict(platform, pipeline_spec_pb2.PlatformSpec())
    return json_format.MessageToDict(message), platform


def check_parameters(spec: Object, given: Object) -> str:
    """Says what is wrong with a run's parameters; nothing when they fit."""
    declared = spec["root"].get("inputDefinitions", {}).get("parameters", {})
    for name, parameter in declared.items():
        kind = parameter["parameterType"]
        if name not in given:
            if not parameter.get("isOptional") and "defaultValue" not in parameter:
                return (
                    f"parameter {name} is not optional, yet has neither default value nor user "
                    "provided value"
                )
        elif kind in _TYPES and not _is(given[name], _TYPES[kind]):
            return f"input parameter {name} requires type {kind}, but the parameter value is not"
    extra = [name for name in given if name not in declared]
    if extra:
        return f"parameter(s) provided are not required by pipeline: {', '.join(extra)}"
    return ""


def _is(value: Any, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and (types == (bool,) or not isinstance(value, bool))


def check_schedule(body: Object) -> None:
    """Refuses a recurring run as the server does."""
    failed = "Failed to create a recurring run due to conversion error: Invalid input error"
    if not body.get("display_name"):
        raise ApiError(INVALID, f"{failed}: Recurring run's name cannot be empty")
    limit = int(body.get("max_concurrency", 0))
    if not 1 <= limit <= 10:
        words = "Max concurrency of a recurring run must be at least 1 and at most 10."
        raise ApiError(INVALID, f"{failed}: {words} Received {limit}", f"{words} Received {limit}")
    trigger = body.get("trigger", {})
    cron = trigger.get("cron_schedule", {}).get("cron")
    if cron is not None and not cron.startswith("@") and len(cron.split()) not in (5, 6):
        words = (
            "Schedule cron is not a supported format(https://godoc.org/github.com/robfig/cron). "
            f"Error: Expected 5 to 6 fields, found {len(cron.split())}: {cron}"
        )
        raise ApiError(INVALID, f"{failed}: {words}", words)
    interval = trigger.get("periodic_schedule", {}).get("interval_second")
    if interval is not None and int(interval) < 1:
        words = f"Found invalid period schedule interval {interval}."
        raise ApiError(INVALID, f"{failed}: {words}", words)
