"""Names for the tasks of a run, so that a person tells the iterations of a loop apart.

A step's own name where it ran once; else the name, a colon, and the arguments that differ, such as
`train:lr=0.1`, or, where none differ, its number, such as `train:2`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kfp_pytorch.launcher.text import cut

# KFP's name for a value that is a part of another.
_PART = "pipelinechannel--"
_LONGEST = 32
Task = tuple[str, Mapping[str, Any]]
"""A step's name, and its input parameters by name."""


def labels(tasks: Sequence[Task]) -> list[str]:
    """Returns the label of each task, in their order."""
    found = [name for name, _ in tasks]
    for name in dict.fromkeys(found):
        same = [index for index, (other, _) in enumerate(tasks) if other == name]
        if len(same) > 1:
            told = _telling([_arguments(tasks[index][1]) for index in same])
            for number, (index, text) in enumerate(zip(same, told, strict=True), 1):
                found[index] = f"{name}:{text or number}"
    return found


def attempts(spec: Mapping[str, Any]) -> dict[str, int]:
    """Returns how many attempts each step of a pipeline has, where it is more than one."""
    found = {}
    for step, _, task in _steps(spec):
        retries = int(task.get("retryPolicy", {}).get("maxRetryCount", 0))
        if retries > 0:
            found[step] = retries + 1
    return found


def display_names(spec: Mapping[str, Any]) -> dict[str, str]:
    """Returns the names that `set_display_name` gave to steps of a pipeline."""
    named = ((step, key, task.get("taskInfo", {}).get("name")) for step, key, task in _steps(spec))
    return {step: str(name) for step, key, name in named if name not in (None, "", key)}


def _steps(spec: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """The steps of a pipeline by name, each with its task and the key of that."""
    components = spec.get("components", {})
    for dag in (spec["root"], *components.values()):
        for key, task in dag.get("dag", {}).get("tasks", {}).items():
            label = components[task["componentRef"]["name"]].get("executorLabel", "")
            if label:
                yield label.removeprefix("exec-"), key, task


def matches(tasks: Sequence[Task], asked: str) -> list[int]:
    """Returns the numbers, from 0, of the tasks that a name, a label or `NAME:NUMBER` names.

    Arguments after the colon need only be some of those that differ.
    """
    known = labels(tasks)
    if asked in known:
        return [known.index(asked)]
    name, _, which = asked.partition(":")
    same = [i for i, (other, _) in enumerate(tasks) if _plain(other) == _plain(name)]
    if not which:
        return same
    if which.isdecimal():
        return same[int(which) - 1 : int(which)] if int(which) else []
    wanted = {_same(text) for text in which.split(",")}
    given = [_arguments(tasks[index][1]).items() for index in same]
    texts = [{_same(_text(name, value)) for name, value in items} for items in given]
    return [index for index, given in zip(same, texts, strict=True) if wanted <= given]


def _plain(name: str) -> str:
    return name.replace("_", "-")


def _telling(given: Sequence[Mapping[str, str]]) -> list[str]:
    """Of each task the arguments that tell it from the others, as few as do; empty if none do."""
    names = list(dict.fromkeys(name for each in given for name in each))
    differing = [name for name in names if len({each.get(name) for each in given}) > 1]
    own = [name for name in differing if not name.startswith(_PART)]
    chosen: list[str] = []
    for name in own or differing:
        shown = _shown(given, chosen)
        if len(set(shown)) == len(given):
            return shown
        if len(set(_shown(given, [*chosen, name]))) > len(set(shown)):
            chosen.append(name)
    shown = _shown(given, chosen)
    return shown if len(set(shown)) == len(given) else [""] * len(given)


def _shown(given: Sequence[Mapping[str, str]], names: Sequence[str]) -> list[str]:
    return [",".join(_text(n, each[n]) for n in names if n in each) for each in given]


def _text(name: str, value: str) -> str:
    return f"{name.removeprefix(_PART)}={cut(value, _LONGEST)}"


def _same(text: str) -> str:
    """Writes a whole number in one way, whether a person typed `3` or `3.0`."""
    return re.sub(r"(?<==)(-?\d+)\.0+$", r"\1", text)


def _arguments(inputs: Mapping[str, Any]) -> dict[str, str]:
    """The inputs by name, with each entry of a dict or list as an argument of its own."""
    found: dict[str, str] = {}
    for name, value in _leaves(inputs):
        found.setdefault(name, value)
    return found


def _leaves(inputs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in inputs.items():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        elif isinstance(value, list):
            for number, item in enumerate(value):
                key, mark, rest = str(item).lstrip("-").partition("=")
                yield (key, rest) if mark else (f"{name}[{number}]", _written(item))
        else:
            yield name, _written(value)


def _written(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        # KFP has no whole numbers in a dict or list.
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
