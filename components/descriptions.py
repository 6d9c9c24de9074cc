"""Descriptions for KFP: a docstring is wrapped for its reader, a package shows it as it is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

_SECTIONS = ("Args:", "Returns:", "Raises:")


def unwrapped(func: Callable[..., Any]) -> Callable[..., Any]:
    """Joins the wrapped lines in the docstring of a function that KFP reads.

    Args:
        func: The function. Each paragraph, argument and result of its docstring becomes one line.

    Returns:
        The same function.
    """
    lines: list[str] = []
    for line in (inspect.getdoc(func) or "").splitlines():
        if lines and _continues(line, lines[-1]):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    func.__doc__ = "\n".join(lines)
    return func


def _continues(line: str, before: str) -> bool:
    """Whether a line goes on with the sentence of the one before it."""
    if not line.strip() or not before.strip() or {line, before} & set(_SECTIONS):
        return False
    return _indent(line) > _indent(before) or not _indent(line)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
