"""Words for messages: counts and lists."""

from __future__ import annotations

from collections.abc import Iterable


def counted(count: int, what: str) -> str:
    """Say how many: `1 restart`, `2 restarts`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def some(names: Iterable[str], most: int = 3) -> str:
    """Join names for a sentence: the first few, then a count."""
    listed = list(names)
    if len(listed) <= most + 1:
        return " and ".join(filter(None, (", ".join(listed[:-1]), *listed[-1:])))
    return f"{', '.join(listed[:most])} and {len(listed) - most} more"
