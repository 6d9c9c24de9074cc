"""Checks of every object's metadata, and the causes that all checks report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import ApiError, Cause, Object, bad_request
from kfp_pytorch.local.apiserver.registry import Resource

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_1035 = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_VALUE = r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
_QUALIFIED = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
# The rules of names that are no subdomains, and how long these may be.
_NAME_RULES = {"Namespace": (_LABEL, 63), "Service": (_LABEL_1035, 63)}
_ANNOTATIONS_LIMIT = 256 * 1024

_JSON_NAMES = {bool: "bool", int: "number", float: "number", str: "string", list: "array"}
# The types of these are checked before anything else.
_STRINGS = ("name", "generateName", "namespace", "uid", "resourceVersion")
_STRING_MAPS = ("labels", "annotations")


def invalid_value(field: str, value: Any, why: str) -> Cause:
    """A cause: the value is wrong."""
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    return Cause("FieldValueInvalid", field, f"Invalid value: {shown}: {why}")


def required(field: str, why: str = "") -> Cause:
    """A cause: the field is missing."""
    return Cause("FieldValueRequired", field, "Required value" + (f": {why}" if why else ""))


def forbidden(field: str, why: str) -> Cause:
    """A cause: the value is not allowed here."""
    return Cause("FieldValueForbidden", field, f"Forbidden: {why}")


def duplicate(field: str, shown: str) -> Cause:
    """A cause: an entry of a list is a duplicate."""
    return Cause("FieldValueDuplicate", field, f"Duplicate value: {shown}")


def unsupported(field: str, value: Any, supported: Iterable[str]) -> Cause:
    """A cause: the field takes only some values."""
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    values = ", ".join(f'"{item}"' for item in supported)
    message = f"Unsupported value: {shown}: supported values: {values}"
    return Cause("FieldValueNotSupported", field, message)


def check_types(resource: Resource, obj: Object) -> None:
    """Refuses metadata that does not fit its JSON types. Raises ApiError: 400."""
    meta = obj.get("metadata")
    if meta is None:
        obj["metadata"] = {}
        return
    if not isinstance(meta, dict):
        raise unreadable(resource, meta, "ObjectMeta.metadata", "v1.ObjectMeta")
    for field in _STRINGS:
        if not isinstance(meta.get(field) or "", str):
            raise unreadable(resource, meta[field], f"ObjectMeta.metadata.{field}", "string")
    for field in _STRING_MAPS:
        _check_map(resource, meta.get(field) or {}, field)
    for entry in _listed(resource, meta, "finalizers"):
        if not isinstance(entry, str):
            raise unreadable(resource, entry, "ObjectMeta.metadata.finalizers", "string")
    for entry in _listed(resource, meta, "ownerReferences"):
        if not isinstance(entry, dict):
            where = "ObjectMeta.metadata.ownerReferences"
            raise unreadable(resource, entry, where, "v1.OwnerReference")


def _check_map(resource: Resource, entries: Any, field: str) -> None:
    where = f"ObjectMeta.metadata.{field}"
    if not isinstance(entries, dict):
        raise unreadable(resource, entries, where, "map[string]string")
    for value in entries.values():
        if not isinstance(value, str | None):
            raise unreadable(resource, value, where, "string")


def _listed(resource: Resource, meta: Object, field: str) -> list[Any]:
    found = meta.get(field) or []
    if not isinstance(found, list):
        raise unreadable(resource, found, f"ObjectMeta.metadata.{field}", "[]string")
    return found


def unreadable(resource: Resource, value: Any, where: str, wanted: str) -> ApiError:
    """400 for a value of another JSON type than the field's."""
    kind = resource.kind
    found = _JSON_NAMES.get(type(value), "object")
    return bad_request(
        f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: '
        f"json: cannot unmarshal {found} into Go struct field {where} of type {wanted}"
    )


def check_metadata(resource: Resource, obj: Object) -> Iterator[Cause]:
    """What is wrong with the names, labels, annotations and owners of an object."""
    if not objects.name(obj):
        yield required("metadata.name", "name or generateName is required")
    else:
        rule, limit = _NAME_RULES.get(resource.kind.kind, (_SUBDOMAIN, 253))
        yield from check_dns(objects.name(obj), "metadata.name", rule, limit)
    for key, value in objects.labels(obj).items():
        yield from check_label(key, value, "metadata.labels")
    yield from _check_annotations(objects.metadata(obj).get("annotations") or {})
    yield from _check_owners(objects.owners(obj))


_RULES = {
    _LABEL: (
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
        "and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc'"
    ),
    _SUBDOMAIN: (
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' "
        "or '.', and must start and end with an alphanumeric character (e.g. 'example.com'"
    ),
    _LABEL_1035: (
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with "
        "an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or "
        "'abc-123'"
    ),
    _VALUE: (
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
        "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or "
        "'my_value',  or '12345'"
    ),
}


def check_dns(value: str, field: str, rule: str = _LABEL, limit: int = 63) -> Iterator[Cause]:
    """What is wrong with a name, or a label's value: its length, then its characters."""
    if len(value) > limit:
        yield invalid_value(field, value, f"must be no more than {limit} characters")
    if not re.fullmatch(rule, value):
        why = f"{_RULES[rule]}, regex used for validation is '{rule}')"
        yield invalid_value(field, value, why)


def check_label(key: str, value: str, field: str) -> Iterator[Cause]:
    """What is wrong with one label."""
    yield from check_key(key, field)
    yield from check_dns(value or "", field, _VALUE)


def check_key(key: str, field: str) -> Iterator[Cause]:
    """What is wrong with the key of a label, an annotation or a taint."""
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > 253 or not re.fullmatch(_SUBDOMAIN, prefix)):
        why = f"prefix part {_RULES[_SUBDOMAIN]}, regex used for validation is '{_SUBDOMAIN}')"
        yield invalid_value(field, key, why)
    if len(name) > 63:
        yield invalid_value(field, key, "name part must be no more than 63 characters")
    if not re.fullmatch(_QUALIFIED, name):
        why = (
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start "
            "and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or "
            f"'123-abc', regex used for validation is '{_QUALIFIED}')"
        )
        yield invalid_value(field, key, why)


def _check_annotations(annotations: dict[str, str]) -> Iterator[Cause]:
    for key in annotations:
        yield from check_key(key.lower(), "metadata.annotations")
    size = sum(
        len(key.encode()) + len((value or "").encode()) for key, value in annotations.items()
    )
    if size > _ANNOTATIONS_LIMIT:
        message = f"Too long: must have at most {_ANNOTATIONS_LIMIT} bytes"
        yield Cause("FieldValueTooLong", "metadata.annotations", message)


def _check_owners(owners: list[Object]) -> Iterator[Cause]:
    for owner in owners:
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                shown = f"metadata.ownerReferences.{field}"
                why = "version must not be empty" if field == "apiVersion" else "must not be empty"
                yield invalid_value(shown, owner.get(field) or "", why)
    controllers = [owner.get("name") for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        why = (
            'Only one reference can have Controller set to true. Found "true" in references for '
            f"{controllers[0]} and {controllers[1]}"
        )
        yield invalid_value("metadata.ownerReferences", "owners", why)
