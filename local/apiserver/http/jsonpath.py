"""As much of Kubernetes' JSONPath as printer columns use."""

from __future__ import annotations

import re
from typing import Any

_STEP = re.compile(
    r"\.(?P<field>[^.\[]+)"
    r"|\[(?P<index>-?\d+)(?P<slice>:)?\]"
    r"|\[(?P<all>\*)\]"
    r"|\[\?\(@\.(?P<key>[^=!]+?)\s*==\s*(?P<value>[^)]+)\)\]"
)
_WORDS = {"true": True, "false": False}


def values(obj: Any, path: str) -> list[Any]:
    """All values at a path such as `.status.conditions[?(@.type=='Ready')].status`."""
    found = [obj]
    for step in _STEP.finditer(path):
        found = [item for value in found for item in _stepped(value, step)]
    return found


def _stepped(value: Any, step: re.Match[str]) -> list[Any]:
    if step["field"] is not None:
        held = isinstance(value, dict) and step["field"] in value
        return [value[step["field"]]] if held else []
    if not isinstance(value, list):
        return []
    if step["index"] is not None:
        index = int(step["index"])
        if step["slice"]:
            return value[index:]
        return [value[index]] if -len(value) <= index < len(value) else []
    if step["key"] is not None:
        text = step["value"].strip()
        wanted = text[1:-1] if text[:1] in "'\"" else _WORDS.get(text, text)
        return [v for v in value if isinstance(v, dict) and v.get(step["key"]) == wanted]
    return value
