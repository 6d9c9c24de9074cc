"""Pruning, defaults and checks of custom resources by their OpenAPI schemas."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from json import dumps
from typing import TYPE_CHECKING, Any

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Cause, Object
from kfp_pytorch.local.apiserver.registry import Resource
from kfp_pytorch.local.apiserver.validation import models
from kfp_pytorch.local.apiserver.validation.fields import duplicate, required, unsupported

if TYPE_CHECKING:
    from jsonschema_rs import Draft7Validator, ValidationError

_ROOT = ("apiVersion", "kind", "metadata")
_PRESERVE = "x-kubernetes-preserve-unknown-fields"
# Of our own short schemas: a model that has further fields.
_MODEL = "x-kfp-pytorch-model"
_INT_OR_STRING = "x-kubernetes-int-or-string"
_JSON_TYPES = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


def prune(resource: Resource, obj: Object) -> tuple[Object, list[str]]:
    """The object with the schema's defaults and without unknown fields, and their paths."""
    dropped: list[str] = []
    root = {key: obj[key] for key in _ROOT if key in obj}
    body = {key: value for key, value in obj.items() if key not in _ROOT}
    schema = resource.schema or {_PRESERVE: True}
    known = {k: v for k, v in schema.get("properties", {}).items() if k not in _ROOT}
    kept = _pruned_mapping(body, {**schema, "properties": known}, "", dropped)
    return {**root, **kept}, dropped


def _pruned(value: Any, schema: Object, path: str, dropped: list[str]) -> Any:
    if isinstance(value, dict) and schema.get("type", "object") == "object":
        return _pruned_mapping(value, schema, f"{path}.", dropped)
    if isinstance(value, list) and "items" in schema:
        items = schema["items"]
        return [_pruned(v, items, f"{path}[{i}]", dropped) for i, v in enumerate(value)]
    return value


def _pruned_mapping(value: Object, schema: Object, path: str, dropped: list[str]) -> Object:
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties", bool(schema.get(_PRESERVE)))
    of_model = models.fields(schema[_MODEL]) if _MODEL in schema else {}
    kept: Object = {}
    for key, item in value.items():
        known = properties.get(key, others)
        if known is False and key in of_model:
            if item is not None:
                kept[key] = models.pruned(item, of_model[key], f"{path}{key}", dropped)
        elif known is False:
            dropped.append(f"{path}{key}")
        elif known is True:
            kept[key] = item
        elif item is not None or known.get("nullable"):
            kept[key] = _pruned(item, known, f"{path}{key}", dropped)
    for key, known in properties.items():
        if key not in kept and "default" in known:
            kept[key] = objects.copy(known["default"])
    return kept


def check(resource: Resource, obj: Object) -> Iterator[Cause]:
    """What the schema does not allow, with a real server's messages."""
    if resource.schema is None:
        return
    body = {key: value for key, value in obj.items() if key != "metadata"}
    errors = _validator(resource).iter_errors(body)
    # A real server names wrong values first, then what is missing.
    yield from map(_cause, sorted(errors, key=lambda error: error.kind.name == "required"))
    yield from _duplicates(body, resource.schema, "")


def forbidden_changes(resource: Resource, old: Object, new: Object) -> Iterator[Cause]:
    """Changes of fields that the schema's rules call immutable."""
    if resource.schema is not None:
        yield from _changed_immutables(old, new, resource.schema, "")


@lru_cache(maxsize=64)
def _validator(resource: Resource) -> Draft7Validator:
    # Imported late: a server with nothing to check starts without it.
    from jsonschema_rs import Draft7Validator

    return Draft7Validator(_plain(resource.schema), validate_formats=False)


def _plain(schema: Any) -> Any:
    """An OpenAPI schema as JSON Schema: without what Kubernetes adds to it."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes")}
    if "properties" in plain:
        plain["properties"] = {name: _plain(part) for name, part in plain["properties"].items()}
    for key in ("items", "additionalProperties", "not", "anyOf", "allOf", "oneOf"):
        if key in plain:
            plain[key] = _plain(plain[key])
    if schema.get(_INT_OR_STRING):
        plain.pop("anyOf", None)
        plain["type"] = ["integer", "string"]
    if schema.get("nullable") and isinstance(plain.get("type"), str):
        plain["type"] = [plain["type"], "null"]
    plain.pop("nullable", None)
    plain.pop("default", None)
    return plain


def _cause(error: ValidationError) -> Cause:
    # A real server leaves the indexes of lists out of these paths.
    path = ".".join(str(part) for part in error.instance_path if not isinstance(part, int))
    kind: Any = error.kind
    if kind.name == "required":
        return required(f"{path}.{kind.property}" if path else kind.property)
    if kind.name == "enum":
        return unsupported(path, error.instance, list(kind.options))
    shown, why = _described(error, path)
    return Cause("FieldValueInvalid", path, f"Invalid value: {shown}: {why}")


def _shown(value: Any) -> str:
    return dumps(value, ensure_ascii=False)


_LIMITS = {
    "minimum": "should be greater than or equal to {}",
    "maximum": "should be less than or equal to {}",
    "exclusiveMinimum": "should be greater than {}",
    "exclusiveMaximum": "should be less than {}",
    "minLength": "should be at least {} chars long",
    "maxLength": "should be at most {} chars long",
    "pattern": "should match '{}'",
    "minItems": "should have at least {} items",
    "maxItems": "should have at most {} items",
    "minProperties": "should have at least {} properties",
    "maxProperties": "should have at most {} properties",
}
_COMBINED = {"anyOf": "at least one schema (anyOf)", "oneOf": "one and only one schema (oneOf)"}


def _described(error: ValidationError, path: str) -> tuple[str, str]:
    """The value as its message shows it, and what is wrong with it."""
    kind: Any = error.kind
    value: Any = error.instance
    if kind.name == "type":
        found = f'"{_JSON_TYPES.get(type(value), "object")}"'
        wanted = ",".join(name for name in kind.types if name != "null")
        return found, f"{path} in body must be of type {wanted}: {found}"
    if kind.name in _LIMITS:
        counted = kind.name.endswith(("Items", "Properties"))
        limit = _LIMITS[kind.name].format(kind.value)
        return str(len(value)) if counted else _shown(value), f"{path} in body {limit}"
    if kind.name in _COMBINED:
        return _shown(value), f'"{path}" must validate {_COMBINED[kind.name]}'
    return _shown(value), error.message


def _children(value: Any, schema: Object, path: str) -> Iterator[tuple[Any, Object, str]]:
    """The parts of a value, each with its schema and its path as list checks write it."""
    if isinstance(value, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties")
        for key, item in value.items():
            if key in properties:
                yield item, properties[key], f"{path}.{key}" if path else key
            elif isinstance(others, dict):
                yield item, others, f"{path}[{key}]"
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for index, item in enumerate(value):
            yield item, schema["items"], f"{path}[{index}]"


def _duplicates(value: Any, schema: Object, path: str) -> Iterator[Cause]:
    kind = schema.get("x-kubernetes-list-type")
    if isinstance(value, list) and kind in ("map", "set"):
        seen: list[Any] = []
        for index, item in enumerate(value):
            identity, shown = _identity(item, schema.get("x-kubernetes-list-map-keys"))
            if identity in seen:
                yield duplicate(f"{path}[{index}]", shown)
            seen.append(identity)
    for item, known, where in _children(value, schema, path):
        yield from _duplicates(item, known, where)


def _identity(item: Any, keys: list[str] | None) -> tuple[Any, str]:
    if not keys or not isinstance(item, dict):
        return item, _shown(item)
    identity = {key: item[key] for key in sorted(keys) if key in item}
    shown = ", ".join(f'"{key}":{_shown(value)}' for key, value in identity.items())
    return identity, f"map[string]interface {{}}{{{shown}}}"


def _changed_immutables(old: Any, new: Any, schema: Object, path: str) -> Iterator[Cause]:
    for rule in schema.get("x-kubernetes-validations") or []:
        if rule.get("rule", "").strip() == "self == oldSelf" and old != new:
            message = f"Invalid value: {_shown(new)}: {rule.get('message', 'is immutable')}"
            yield Cause("FieldValueInvalid", path, message)
    if isinstance(old, dict) and isinstance(new, dict):
        before = {where: item for item, _, where in _children(old, schema, path)}
        for item, known, where in _children(new, schema, path):
            if where in before:
                yield from _changed_immutables(before[where], item, known, where)
