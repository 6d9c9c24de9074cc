"""Descriptions for KFP, from docstrings, which are wrapped and as long as a reader needs.

KFP puts a component's descriptions into the Workflow of a run eight times for each step, and shows
them nowhere; so a component has none of its inputs. A pipeline's are shown. `kfp-pytorch params`
shows those of a component's inputs, too.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

_SECTIONS = ("Args:", "Returns:", "Raises:")
# The first sentence of an entry `name: Words. More words.`, or its part before a semicolon.
_ENTRY = re.compile(r"^    (\w+): (.{10,}?)(?:[.;] .*|\.)$")


def unwrapped(func: Callable[..., Any]) -> Callable[..., Any]:
    """Makes each paragraph, argument and result of a docstring that KFP reads one line."""
    func.__doc__ = _unwrapped(inspect.getdoc(func) or "")
    return func


def _unwrapped(text: str) -> str:
    lines: list[str] = []
    for line in text.splitlines():
        if lines and _continues(line, lines[-1]):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return "\n".join(lines)


def without_sections(func: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps what is said of the whole, unwrapped, and nothing of arguments and results."""
    func.__doc__ = _about(func)[0].strip()
    return func


def of_inputs(func: Callable[..., Any]) -> dict[str, str]:
    """The first sentence of what is said of each argument."""
    entries = (_ENTRY.match(line) for line in _about(func)[1].splitlines())
    return {found[1]: f"{found[2]}." for found in entries if found}


def _about(func: Callable[..., Any]) -> tuple[str, str]:
    """What a docstring says of the whole, and of the arguments."""
    about, _, sections = _unwrapped(inspect.getdoc(func) or "").partition("\nArgs:\n")
    return about, sections.partition("\nReturns:\n")[0]


def _continues(line: str, before: str) -> bool:
    """Whether a line goes on with the sentence of the one before it."""
    if not line.strip() or not before.strip() or {line, before} & set(_SECTIONS):
        return False
    return _indent(line) > _indent(before) or not _indent(line)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
