"""Finds what to do about words that are known, in the tables of `advice.toml`."""

from __future__ import annotations

import functools
import pkgutil
import re
import tomllib
from collections.abc import Iterator


@functools.cache
def tables() -> dict[str, list[tuple[re.Pattern[str], str]]]:
    """Return each table's patterns with their advice, the narrower before the wider."""
    # A step's launcher may be in a zip file.
    content = pkgutil.get_data("kfp_pytorch.launcher", "advice.toml") or b""
    return {
        name: [(re.compile("|".join(entry["words"])), entry["advice"]) for entry in entries]
        for name, entries in tomllib.loads(content.decode()).items()
    }


def every(table: str, words: str) -> Iterator[tuple[re.Match[str], str]]:
    """Yield where each pattern of a table that fits does so, and its advice."""
    for pattern, text in tables()[table]:
        if match := pattern.search(words):
            yield match, text


def first(table: str, words: str) -> tuple[re.Match[str] | None, str]:
    """Return where the first pattern that fits does so, and its advice; or none and no text."""
    return next(every(table, words), (None, ""))


def advice(table: str, words: str) -> str:
    """Return the advice of the first pattern that fits, or an empty string."""
    return first(table, words)[1]
