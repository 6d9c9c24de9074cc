"""Causes that a training program's output shows. Each is a pure function of the facts."""

from __future__ import annotations

from kfp_pytorch.launcher import patterns
from kfp_pytorch.launcher.diagnosis.collective_causes import peers_lost
from kfp_pytorch.launcher.diagnosis.facts import Cause, Facts
from kfp_pytorch.launcher.diagnosis.program_errors import KILLED_BY, KilledRank, killed_rank
from kfp_pytorch.launcher.kubernetes import pod_status

_FIX_PROGRAM = "Correct the program or its arguments and run again."
_LONGEST_LINE = 300  # characters of a line of a log


def exception(facts: Facts) -> Cause | None:
    """The program raised an error that is not about lost peers."""
    if not facts.errors or facts.errors[0].lost_peers:
        return None
    first = facts.errors[0]
    words = f"{first.type}: {first.message}" if first.message else first.type
    who = f"Rank {first.rank} ({first.pod})" if first.rank is not None else first.pod
    known = patterns.advice("program", f"{words}\n{first.traceback}")
    return Cause(f"{who} raised {words}", known or _FIX_PROGRAM)


def known_line(facts: Facts) -> Cause | None:
    """A log has a line that is known, where no error and no lost peer was found."""
    text = facts.words
    match, advice = patterns.first("program", text)
    if match is None or facts.errors or peers_lost(facts):
        return None
    start = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    line = text[start : end if end >= 0 else len(text)].strip()
    return Cause(f"The log says: {line[:_LONGEST_LINE]}", advice)


def rank_killed(facts: Facts) -> Cause | None:
    """A signal that no lost peer explains ended a rank."""
    rank = killed_rank(facts.logs)
    return _rank_ended(rank) if rank and rank.code in KILLED_BY else None


def rank_ended_by_signal(facts: Facts) -> Cause | None:
    """Another signal ended a rank."""
    rank = killed_rank(facts.logs)
    return _rank_ended(rank) if rank and rank.code not in KILLED_BY else None


def _rank_ended(rank: KilledRank) -> Cause:
    return Cause(
        f"Rank {rank.rank} ({rank.pod}) was ended by {pod_status.signal_name(rank.code)}",
        patterns.advice("exit_code", str(rank.code)) or _FIX_PROGRAM,
    )
