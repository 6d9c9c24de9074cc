"""What the checks find, and how it is told. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OK, WARNING, ERROR = "ok", "warning", "error"
LEVELS = (OK, WARNING, ERROR)


@dataclass(frozen=True)
class Finding:
    """One line of the result.

    Attributes:
        level: `ok`, `warning` (the run works, or nobody knows) or `error` (it cannot work).
        about: What was looked at, such as `storage`.
        what: What is the case, as sentences.
        mend: The command that mends it, or what else to do; empty where nothing is to be mended.
    """

    level: str
    about: str
    what: str
    mend: str = ""


def ok(about: str, what: str) -> Finding:
    """Something is as the run needs it."""
    return Finding(OK, about, what)


def warning(about: str, what: str, mend: str = "") -> Finding:
    """Something may go wrong, or could not be looked at."""
    return Finding(WARNING, about, what, mend)


def error(about: str, what: str, mend: str = "") -> Finding:
    """The run cannot work."""
    return Finding(ERROR, about, what, mend)


def worst(findings: Iterable[Finding]) -> str:
    """Return the worst level of all; `ok` where there is none."""
    return max((each.level for each in findings), key=LEVELS.index, default=OK)


def counted(findings: Iterable[Finding]) -> str:
    """Say how many there are of each level: `5 ok, 1 warning, 2 errors`."""
    levels = [each.level for each in findings]
    parts = [(levels.count(level), level) for level in LEVELS]
    told = [f"{n} {level}{'s' * (n != 1 and level != OK)}" for n, level in parts if n]
    return ", ".join(told) or "nothing to check"


def message(findings: Iterable[Finding]) -> str:
    """Tell all errors, then the warnings, each with what mends it."""
    lines = []
    for level in (ERROR, WARNING):
        for each in (found for found in findings if found.level == level):
            lines.append(f"- {level}, {each.about}: {each.what}")
            lines += [f"  {each.mend}"] if each.mend else []
    return "\n".join(lines)


def table(findings: Iterable[Finding]) -> str:
    """Write the findings as a table in Markdown."""
    rows = ["| | about | what | what mends it |", "| --- | --- | --- | --- |"]
    for each in findings:
        cells = (each.level, each.about, each.what, each.mend)
        rows.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
