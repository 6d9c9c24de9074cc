"""Finds what to do about words that are known, in a table of patterns. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable

Known = tuple[str, str]
"""A regular expression, and what to do where it is found."""


def first(table: Iterable[Known], words: str) -> tuple[re.Match[str] | None, str]:
    """Return where the first pattern that fits does so, and its advice.

    `table`: patterns with their advice, the narrower before the wider. Returns none and an empty
    string where no pattern fits.
    """
    for pattern, text in table:
        if match := re.search(pattern, words):
            return match, text
    return None, ""


def advice(table: Iterable[Known], words: str) -> str:
    """Return the advice of the first pattern that fits, or an empty string.

    `table`: patterns with their advice, the narrower before the wider.
    """
    return first(table, words)[1]
