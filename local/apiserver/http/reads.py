"""Answers to GET: objects, lists in pages, tables."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import ApiError, Object, bad_request, expired
from kfp_pytorch.local.apiserver.http import tables
from kfp_pytorch.local.apiserver.http.paths import Target
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.apiserver.store.selectors import selector

_META = "meta.k8s.io/v1"


@dataclass(frozen=True)
class Shape:
    """In what form a client wants objects."""

    form: str = ""  # `Table`, `PartialObjectMetadata`, or empty for the objects themselves
    include: str = "Metadata"  # how much of its object a row of a table carries


def shape(accept: str, query: Mapping[str, str]) -> Shape:
    """The form that an Accept header asks for; the first that this server can make."""
    for option in accept.split(","):
        settings = dict(
            part.strip().partition("=")[::2] for part in option.split(";")[1:] if "=" in part
        )
        form = settings.get("as", "").removesuffix("List")
        if form in ("Table", "PartialObjectMetadata") and settings.get("g") == "meta.k8s.io":
            return Shape(form, query.get("includeObject", "Metadata"))
        if not form:
            break
    return Shape()


def revision(value: str) -> int | None:
    """A `resourceVersion` of a query; None where any will do. Raises ApiError: 400."""
    if value in ("", "0"):
        return None
    if not value.isdecimal():
        why = f'strconv.ParseUint: parsing "{value}": invalid syntax'
        raise bad_request(f'resourceVersion: Invalid value: "{value}": {why}')
    return int(value)


def number(query: Mapping[str, str], name: str) -> int | None:
    """A whole number of a query, or None where it is not there. Raises ApiError: 400."""
    value = query.get(name, "")
    if not value:
        return None
    try:
        return int(value)
    except ValueError:
        why = f'strconv.ParseInt: parsing "{value}": invalid syntax'
        raise bad_request(f'{name}: Invalid value: "{value}": {why}') from None


def yes(query: Mapping[str, str], name: str) -> bool:
    """Whether a query says that something is wanted."""
    return query.get(name, "").lower() in ("1", "true")


def one(api: Api, target: Target, form: Shape) -> Object:
    """One object, in the form that is asked for."""
    return shaped(api, target, api.existing(*target.key), form)


def shaped(api: Api, target: Target, obj: Object, form: Shape) -> Object:
    """An object in the form that is asked for."""
    if form.form == "Table":
        meta = {"resourceVersion": objects.metadata(obj).get("resourceVersion", "")}
        return tables.table(target.resource, [obj], api.clock(), meta, form.include)
    return tables.partial(obj) if form.form else obj


def many(api: Api, target: Target, query: Mapping[str, str], form: Shape) -> Object:
    """A list, or one page of it, in the form asked for. Raises ApiError: 400, 410 or 504."""
    resource = target.resource
    wanted = revision(query.get("resourceVersion", ""))
    if wanted is not None and wanted > api.revision:
        raise _too_large(wanted, api.revision)
    match = selector(resource, query.get("labelSelector", ""), query.get("fieldSelector", ""))
    found = [obj for obj in api.snapshot(resource.kind, target.namespace) if match(obj)]
    at = api.revision
    if query.get("continue"):
        at, start = _continued(api, target, query["continue"])
        found = [obj for obj in found if _position(obj) > start]
    meta: Object = {"resourceVersion": str(at)}
    limit = number(query, "limit") or 0
    if 0 < limit < len(found):
        meta["continue"] = _token(at, _position(found[limit - 1]))
        if not (query.get("labelSelector") or query.get("fieldSelector")):
            meta["remainingItemCount"] = len(found) - limit
        found = found[:limit]
    if form.form == "Table":
        return tables.table(resource, found, api.clock(), meta, form.include)
    if form.form:
        items = [tables.partial(obj) for obj in found]
        kind = {"kind": "PartialObjectMetadataList", "apiVersion": _META}
    else:
        items = found
        kind = {"kind": resource.list_kind, "apiVersion": resource.kind.api_version}
    return {**kind, "metadata": meta, "items": items}


def _too_large(wanted: int, current: int) -> ApiError:
    message = f"Too large resource version: {wanted}, current: {current}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return ApiError(504, "Timeout", message, {"causes": [cause], "retryAfterSeconds": 1})


def _position(obj: Object) -> list[str]:
    return [objects.namespace(obj), objects.name(obj)]


def _token(at: int, position: list[str]) -> str:
    text = json.dumps({"v": _META, "rv": at, "start": "/".join(position)})
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _continued(api: Api, target: Target, token: str) -> tuple[int, list[str]]:
    try:
        text = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        found = json.loads(text)
        at, start = int(found["rv"]), str(found["start"]).split("/", 1)
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise bad_request(f"invalid continue token: continue key is not valid: {error}") from None
    if at < api.known_since(target.resource.kind):
        raise expired(
            "The provided continue parameter is too old to display a consistent list result. You "
            "can start a new list without the continue parameter."
        )
    return at, start
