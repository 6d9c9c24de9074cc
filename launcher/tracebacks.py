"""Finds the error that ended a Python program in the last lines of its log. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_RANK_PREFIX = re.compile(r"^(\[rank\d+\]:|\[(?:default)?\d+\]:) ?", re.MULTILINE)
_TRACEBACK = re.compile(
    # In brackets what torch's distributed checkpoint gathers from another rank.
    r"Traceback \(most recent call last\):(?P<gathered> \(RANK \d+\))?\n"
    r"(?:[ \t].*\n|\n)+(?P<last>[\w.]+.*)",
    re.MULTILINE,
)
# A script that cannot be parsed is told of without a traceback.
_UNPARSED = re.compile(
    r'^ +File "[^\n]+", line \d+\n(?:[^\n]*\n){1,3}?(?P<last>(?:Syntax|Indentation|Tab)Error: .*)',
    re.MULTILINE,
)
_CHAINED = re.compile(
    r"\n+(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):\n+"
)
_ERROR = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?")
# torch's own summaries of what happened in other processes.
_SUMMARIES = (
    *("ChildFailedError", "ProcessRaisedException", "ProcessExitedException"),
    "CheckpointException",
)
# NCCL's own words come after torch's, which only say what kind of error it is.
_NCCL_WORDS = re.compile(r"nccl[A-Z]\w+: [^\n]*\n\s*Last error: ?\n\s*(?P<last>[^\n]+)")
_LONGEST_CONTEXT = 120


@dataclass(frozen=True)
class Raised:
    """An error that a program wrote as it ended.

    Attributes:
        rank: The rank; None where it was not said.
        type: The exception's class.
        message: Its words.
        traceback: Its traceback, with those of the errors that led to it.
    """

    rank: int | None
    type: str
    message: str
    traceback: str


def first(log: str) -> Raised | None:
    """Find the first error in a log.

    Args:
        log: The last lines, perhaps of many ranks.

    Returns:
        The error, as it ended the program; None where there is none.
    """
    ranks = re.findall(r"^\[rank(\d+)\]:? ?Traceback", log, re.MULTILINE)
    rank, plain = int(ranks[0]) if ranks else None, without_ranks(log)
    own_first = sorted(_TRACEBACK.finditer(plain), key=lambda match: bool(match["gathered"]))
    for match in [*own_first, *_UNPARSED.finditer(plain)]:
        if not _is_summary(match):
            return _read(rank, plain, match)
    return None


def without_ranks(log: str) -> str:
    """Return a log without the prefixes that torch puts before each rank's lines."""
    return _RANK_PREFIX.sub("", log)


def nccl_words(text: str) -> str:
    """Return what NCCL says was wrong, where torch quotes it; or an empty string."""
    said = _NCCL_WORDS.search(without_ranks(text))
    return said["last"].strip() if said else ""


def _read(rank: int | None, plain: str, match: re.Match[str]) -> Raised:
    last = match
    for later in _chain(plain, match):
        last = later
    kind, words = _parts(last["last"])
    end = last.end()
    more = _NCCL_WORDS.match(plain, end + 1)
    if more:
        words, end = more["last"].strip(), more.end()
    elif words.endswith(":"):
        # As torch does of a state that does not fit.
        words = f"{words} {plain[end:].lstrip().partition(chr(10))[0]}".strip()
    if last is not match:
        root = ": ".join(filter(None, _parts(match["last"])))
        words = f"{words} (after {root[:_LONGEST_CONTEXT]})".strip()
    return Raised(rank, kind, words, plain[match.start() : end])


def _chain(plain: str, match: re.Match[str]) -> Iterator[re.Match[str]]:
    """The errors that this one led to: the last of them ended the program."""
    link = _CHAINED.match(plain, match.end())
    later = _TRACEBACK.match(plain, link.end()) if link else None
    if later and not _is_summary(later):
        yield later
        yield from _chain(plain, later)


def _is_summary(match: re.Match[str]) -> bool:
    return _parts(match["last"])[0].rpartition(".")[2] in _SUMMARIES


def _parts(line: str) -> tuple[str, str]:
    error = _ERROR.match(line)
    return (error["type"], error["message"] or "") if error else (line, "")
