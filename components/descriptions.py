"""Descriptions for KFP, from docstrings, which are wrapped and as long as a reader needs.

KFP puts a component's descriptions into the Workflow of a run eight times for each step, and shows
them nowhere. A pipeline's are shown. `kfp-pytorch params` shows those of a component's inputs.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

_SECTIONS = ("Args:", "Returns:", "Raises:")
# The first sentence of an entry `name: Words. More words.`, or its part before a semicolon.
_ENTRY = re.compile(r"^(    \w+: .{10,}?)(?:[.;] .*|\.)$")


def unwrapped(func: Callable[..., Any]) -> Callable[..., Any]:
    """Makes each paragraph, argument and result of a docstring that KFP reads one line."""
    lines: list[str] = []
    for line in (inspect.getdoc(func) or "").splitlines():
        if lines and _continues(line, lines[-1]):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    func.__doc__ = "\n".join(lines)
    return func


def shortened(func: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps the first sentence of each argument, unwrapped, and nothing of the results."""
    about, _, _ = (unwrapped(func).__doc__ or "").partition("\nReturns:\n")
    func.__doc__ = "\n".join(_ENTRY.sub(r"\1.", line) for line in about.splitlines())
    return func


def _continues(line: str, before: str) -> bool:
    """Whether a line goes on with the sentence of the one before it."""
    if not line.strip() or not before.strip() or {line, before} & set(_SECTIONS):
        return False
    return _indent(line) > _indent(before) or not _indent(line)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
