"""Finds the error that ended a Python program in the last lines of its log. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_RANK_PREFIX = re.compile(r"^(\[rank\d+\]:|\[(?:default)?\d+\]:) ?", re.MULTILINE)
_MARKED = re.compile(r"^(?:\[rank[^\n]*)?(?:\n|\Z)", re.MULTILINE)
_TRACEBACK = re.compile(
    # In brackets what torch's distributed checkpoint gathers from another rank.
    r"Traceback \(most recent call last\):(?P<gathered> \(RANK \d+\))?\n"
    r"(?:[ \t].*\n|\n)+(?P<last>[\w.]+.*)",
    re.MULTILINE,
)
# A script that cannot be parsed is reported without a traceback.
_UNPARSED = re.compile(
    r'^ +File "[^\n]+", line \d+\n(?:[^\n]*\n){1,3}?(?P<last>(?:Syntax|Indentation|Tab)Error: .*)',
    re.MULTILINE,
)
_CHAINED = re.compile(
    r"\n+(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):\n+"
)
# An exception group has its members in margins, which separate them.
_GROUP = re.compile(r"^ +[|+] (?:Exception Group )?Traceback \(most", re.MULTILINE)
_MARGIN = re.compile(r"^ +(?:\+[+-]*-{4}.*|[|+] ?)", re.MULTILINE)
# What Python reports as it continues, or as it ends for another reason.
_ASIDE = re.compile(
    r"^(?:Exception ignored|Exception in thread|Error in (?:atexit|sys)|--- Logging error"
    r"|Task exception was never)[^\n]*\n\Z",
    re.MULTILINE,
)
# A line of the program's own, after which a traceback before it was handled.
_WENT_ON = re.compile(
    r"^(?!During handling of|The above exception|Exception |Error in |\[?[IWEF]\d{4} )"
    r"[^\s|+][^\n]*[A-Za-z][^\n]*\n",
    re.MULTILINE,
)
_ERROR = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?")
# torch's own summaries of what happened in other processes.
_SUMMARIES = (
    *("ChildFailedError", "ProcessRaisedException", "ProcessExitedException"),
    *("CheckpointException", "ExceptionGroup", "BaseExceptionGroup"),
)
# NCCL's message comes after torch's, which only says what kind of error it is.
_NCCL_WORDS = re.compile(r"nccl[A-Z]\w+: [^\n]*\n\s*Last error: ?\n\s*(?P<last>[^\n]+)")
_LONGEST_CONTEXT = 120
# More lines than a program writes that only cleans up.
_LAST_LINES = 20


@dataclass(frozen=True)
class Raised:
    """An error that a program wrote as it ended."""

    rank: int | None  # the rank; None where it is not known
    type: str  # the exception's class
    message: str  # its text
    traceback: str  # its traceback, with those of the errors that led to it
    outlived: bool  # whether the program wrote on for long after it


def first(log: str, of_peers: Callable[[str], bool]) -> Raised | None:
    """Find the first error in a log.

    `of_peers`: whether a traceback is only about other ranks that were lost. Returns the error, as
    it ended the program; None where there is none.
    """
    ranks = re.findall(r"^\[rank(\d+)\]:? ?Traceback", log, re.MULTILINE)
    rank = int(ranks[0]) if ranks else None
    # torch marks what ended a rank; what a program handles it writes without marks.
    plain = without_ranks("".join(_MARKED.findall(log)) if ranks else log)
    if _GROUP.search(plain):
        plain = _MARGIN.sub("", plain)
    found = [match for match in _TRACEBACK.finditer(plain) if not _is_summary(match)]
    asides = [match for match in found if match["gathered"] or _is_aside(plain, match)]
    own = [match for match in found if match not in asides]
    ended = own if ranks else _last_together(plain, _without_losses(plain, own, of_peers))
    for match in [*ended, *asides, *_UNPARSED.finditer(plain)]:
        return _read(rank, plain, match)
    return None


def _without_losses(
    plain: str, found: list[re.Match[str]], of_peers: Callable[[str], bool]
) -> list[re.Match[str]]:
    """Leave out what is only about lost ranks, where another error came shortly before."""
    others = [match for match in found if not of_peers(match[0])]
    if others and len(_WENT_ON.findall(plain, others[-1].end())) <= _LAST_LINES:
        return others
    return found


def _last_together(plain: str, found: list[re.Match[str]]) -> list[re.Match[str]]:
    """Return the last of these with those before it that the program did not outlive."""
    first = len(found) - 1
    while first > 0 and not _WENT_ON.search(plain, found[first - 1].end(), found[first].start()):
        first -= 1
    return found[max(0, first) :]


def _is_aside(plain: str, match: re.Match[str]) -> bool:
    above = plain.rfind("\n", 0, max(0, match.start() - 1)) + 1
    return bool(_ASIDE.match(plain, above, match.start()))


def without_ranks(log: str) -> str:
    """Return a log without the prefixes that torch puts before each rank's lines."""
    return _RANK_PREFIX.sub("", log)


def nccl_words(text: str) -> str:
    """Return NCCL's own error message, where torch quotes it; or an empty string."""
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
    outlived = rank is None and len(_WENT_ON.findall(plain, end)) > _LAST_LINES
    return Raised(rank, kind, words, plain[match.start() : end], outlived)


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
