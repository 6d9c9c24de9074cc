"""Loops of a pipeline package whose items cannot work, before anything runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from kfp_pytorch.client.packages.find import Package
from kfp_pytorch.client.packages.known_tasks import (
    SELECTOR,
    defaults,
    iterations,
    known_inputs,
    maker,
    runs,
)
from kfp_pytorch.launcher.text import cut

_CHANNEL = "pipelinechannel--"
_SHOWN = 200  # characters


def loop_problems(package: Package, arguments: dict[str, Any]) -> Iterator[str]:
    """Yields what is wrong with the items of loops, as far as they are known.

    `arguments`: those of the run that is to start; empty when there is none. Warns of items that
    are there twice.
    """
    spec = package.spec
    yield from _walk(spec, spec["root"], defaults(spec["root"], {}) | arguments)


def _walk(spec: dict[str, Any], component: dict[str, Any], known: dict[str, Any]) -> Iterator[str]:
    tasks = component.get("dag", {}).get("tasks", {})
    sources = [
        source
        for task in tasks.values()
        for kind in task.get("inputs", {}).values()
        for source in kind.values()
    ]
    collected = {maker(source) for source in sources}
    for key, task in tasks.items():
        child = spec["components"][task["componentRef"]["name"]]
        if "dag" not in child:
            continue
        inputs = defaults(child, task) | known_inputs(task, known)
        inputs = inputs if runs(task, inputs) else {}
        problems = list(_of_loop(task, child, inputs, used=key in collected))
        yield from problems
        for iteration in [] if problems else iterations(task, inputs):
            yield from _walk(spec, child, iteration)


def _of_loop(
    task: dict[str, Any], child: dict[str, Any], inputs: dict[str, Any], *, used: bool
) -> Iterator[str]:
    iterator = task.get("parameterIterator", {})
    source = iterator.get("items", {})
    name = source.get("inputParameter", "")
    items = inputs.get(name, json.loads(source["raw"]) if "raw" in source else None)
    what = f"The list {name.removeprefix(_CHANNEL)!r}" if "raw" not in source else "A loop's list"
    if items is None:
        return
    if not isinstance(items, list):
        yield f"{what} is {cut(repr(items), _SHOWN)}; a loop takes a list."
        return
    if not items and used:
        yield f"{what} is empty, and a later task takes what the loop makes of its items."
    wanted = _read(child, iterator["itemInput"])
    for i, item in enumerate(items):
        shown = cut(repr(item), _SHOWN)
        lacking = [key for key in wanted if not (isinstance(item, dict) and key in item)]
        if lacking:
            yield f"{what} has the item {shown} without {lacking[0]!r}, which the loop reads."
        elif isinstance(item, dict) and item in items[:i]:
            click.echo(f"Warning: {what} has the item {shown} twice.", err=True)


def _read(child: dict[str, Any], item: str) -> dict[str, None]:
    """Returns the parts of an item that tasks of the loop take."""
    found: dict[str, None] = {}
    for task in child["dag"].get("tasks", {}).values():
        for source in task.get("inputs", {}).get("parameters", {}).values():
            part = SELECTOR.fullmatch(source.get("parameterExpressionSelector", ""))
            if part and source.get("componentInputParameter") == item:
                found[part[1]] = None
    return found
