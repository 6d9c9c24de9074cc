"""What Markdown pages are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table."""
    lines = [_row(head), _row(["---"] * len(head)), *(_row([*map(text, row)]) for row in rows)]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def text(value: Any) -> str:
    """Make a value safe in a table: one line, and nothing in it is Markdown or HTML."""
    line = " ".join(str(value).split())
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", line)
