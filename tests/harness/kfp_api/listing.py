"""Lists as KFP's API server gives them: filtered, sorted, a page at a time.

Read from backend/src/apiserver/list/list.go and filter/filter.go of KFP 2.17.0.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from harness.kfp_api.errors import INVALID, ApiError

Object = dict[str, Any]
_USUAL, _MOST = 20, 200
_OPERATIONS = {1: "EQUALS", 2: "NOT_EQUALS", 8: "IN", 9: "IS_SUBSTRING"}
_VALUES = ("string_value", "stringValue", "string_values", "stringValues")
_COMMON = {"name", "display_name", "created_at", "description", "namespace"}
FIELDS = {
    "experiments": {*_COMMON, "experiment_id", "last_run_created_at", "storage_state"},
    "pipelines": {*_COMMON, "pipeline_id"},
    "pipeline_versions": {*_COMMON, "pipeline_version_id"} - {"namespace"},
    "runs": {
        *(_COMMON | {"run_id", "finished_at", "scheduled_at", "storage_state", "experiment_id"}),
        *("state", "recurring_run_id"),
    },
    "jobs": {"name", "display_name", "created_at", "updated_at", "description", "recurring_run_id"},
}


def page(kind: str, key: str, items: Sequence[Object], query: dict[str, str]) -> Object:
    """One page of a list.

    Args:
        kind: Which fields may be filtered and sorted by.
        key: The field with the id.
        items: Everything.
        query: The parameters of the request.
    """
    size = int(query.get("page_size") or 0)
    if size < 0:
        raise ApiError(INVALID, f"The page size should be greater than 0. Got {size}")
    size = min(size or _USUAL, _MOST)
    wanted = {"sort": query.get("sort_by", ""), "filter": query.get("filter", "")}
    start = ""
    if token := query.get("page_token", ""):
        kept = _token(token)
        if any(wanted.values()) and wanted != {name: kept[name] for name in wanted}:
            raise ApiError(
                INVALID,
                "page token does not match the supplied sort by and/or filtering criteria. Either "
                "specify the same criteria or leave the latter empty if page token is specified",
            )
        wanted, start = {name: kept[name] for name in wanted}, kept["KeyFieldValue"]
    found = _sorted(kind, key, _filtered(kind, items, wanted["filter"]), wanted["sort"])
    first = next((n for n, item in enumerate(found) if item[key] == start), 0)
    shown, after = found[first : first + size], found[first + size : first + size + 1]
    answer: Object = {"items": shown, "total_size": len(found)}
    if after:
        token = json.dumps(wanted | {"KeyFieldName": "UUID", "KeyFieldValue": after[0][key]})
        answer["next_page_token"] = base64.b64encode(token.encode()).decode()
    return answer


def _token(text: str) -> Object:
    try:
        kept: Object = json.loads(base64.b64decode(text, validate=True))
    except ValueError:
        raise ApiError(INVALID, "Invalid page token") from None
    return kept


def _sorted(kind: str, key: str, items: list[Object], by: str) -> list[Object]:
    words = by.lower().split()
    if len(words) > 2 or words[1:] not in ([], ["asc"], ["desc"]):
        raise ApiError(INVALID, f"Received invalid sort by format {by!r}.")
    field = words[0] if words else "created_at"
    if field not in FIELDS[kind]:
        raise ApiError(INVALID, f"Invalid sorting field: {field!r} on listable type {kind}")
    return sorted(
        items, key=lambda item: (str(item.get(field, "")), item[key]), reverse=words[1:] == ["desc"]
    )


def _filtered(kind: str, items: Sequence[Object], text: str) -> list[Object]:
    if not text:
        return list(items)
    try:
        predicates = json.loads(text)["predicates"]
    except (ValueError, KeyError):
        raise ApiError(INVALID, f"failed to parse valid filter from {text!r}") from None
    found = list(items)
    for predicate in predicates:
        operation = _OPERATIONS.get(predicate["operation"], predicate["operation"])
        field = predicate["key"]
        if field not in FIELDS[kind]:
            words = f"no support for filtering on unrecognized field {field!r}"
            raise ApiError(INVALID, words, words)
        value = next(predicate[name] for name in _VALUES if name in predicate)
        value = value["values"] if isinstance(value, dict) else value
        found = [item for item in found if _fits(operation, _value(kind, item, field), value)]
    return found


def _value(kind: str, item: Object, field: str) -> str:
    # An experiment's and a recurring run's one name has two names.
    if field == "name" and kind in ("experiments", "runs", "jobs"):
        field = "display_name"
    return str(item.get(field, ""))


def _fits(operation: str, held: str, value: Any) -> bool:
    if operation == "EQUALS":
        return held == value
    if operation == "NOT_EQUALS":
        return held != value
    if operation == "IN":
        return held in value
    if operation == "IS_SUBSTRING":
        return str(value).lower() in held.lower()
    raise ApiError(INVALID, f"invalid predicate operation: {operation}")
