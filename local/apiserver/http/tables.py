"""Tables: what `kubectl get` prints, made by the server as a real one makes it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.http import cells, jsonpath
from kfp_pytorch.local.apiserver.registry import Column, Resource

_NAME = Column("Name", ".metadata.name")
_AGE = Column("Age", ".metadata.creationTimestamp", "date")
_FUNCTION = re.compile(r"(\w+)\((.*)\)")

Cell = Callable[[Object, datetime], Any]
"""The content of a column for an object, at a time."""


def table(
    resource: Resource,
    found: Iterable[Object],
    now: datetime,
    list_metadata: Object,
    include: str = "Metadata",
) -> Object:
    """Objects as a Table; `include` in each row: `None`, `Metadata` or the whole `Object`."""
    columns = _columns(resource)
    rows = []
    for obj in found:
        row: Object = {"cells": [cell(obj, now) for cell in columns.values()]}
        if include != "None":
            row["object"] = obj if include == "Object" else partial(obj)
        rows.append(row)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": list_metadata,
        "columnDefinitions": [_definition(column) for column in columns],
        "rows": rows,
    }


def partial(obj: Object) -> Object:
    """An object's metadata alone."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": objects.metadata(obj),
    }


def _definition(column: Column) -> Object:
    # Ages are text by the time that they are in a cell.
    kind = "string" if column.type == "date" else column.type
    return {
        "name": column.name,
        "type": kind,
        "format": "name" if column.name == "Name" else "",
        "description": "",
        "priority": column.priority,
    }


def _columns(resource: Resource) -> dict[Column, Cell]:
    if resource.columns and not resource.custom:
        return {column: _native_cell(column) for column in resource.columns}
    others = resource.columns or (_AGE,)
    return {_NAME: _native_cell(_NAME), **{column: _custom_cell(column) for column in others}}


def _native_cell(column: Column) -> Cell:
    function = _FUNCTION.fullmatch(column.path)
    if function:
        found: Callable[..., Any] = getattr(cells, function[1])
        return functools.partial(found, path=function[2]) if function[2] else found
    if not column.path.startswith("."):
        return lambda _obj, _now: column.path

    def cell(obj: Object, _: datetime) -> Any:
        found = [value for value in jsonpath.values(obj, column.path) if value not in (None, "")]
        return found[0] if len(found) == 1 else ",".join(map(str, found)) or column.default

    return cell


def _custom_cell(column: Column) -> Cell:
    def cell(obj: Object, now: datetime) -> Any:
        found = jsonpath.values(obj, column.path)
        if column.type == "date":
            return cells.since(found[0] if found else None, now)
        return ",".join(map(str, found)) if len(found) > 1 else next(iter(found), None)

    return cell
