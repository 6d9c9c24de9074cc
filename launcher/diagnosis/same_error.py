"""Finds that a program fails again and again at its start in the same way. No I/O.

Then it has a bug, or its arguments have, and a further start changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from kfp_pytorch.launcher.diagnosis import program_errors, tracebacks
from kfp_pytorch.launcher.jobs.termination_messages import failure_in
from kfp_pytorch.launcher.kubernetes import objects
from kfp_pytorch.launcher.kubernetes.pod_status import container_status
from kfp_pytorch.launcher.waiting.evidence import Evidence
from kfp_pytorch.launcher.waiting.failed_runs import FailedRun

# What an uncaught Python exception, and torchrun after one of a rank, end with.
_CODE = 1
# In seconds: a program that ran longer has done some of its work.
_AT_ITS_START = 60.0
# An error that another start may not have: memory that others used, servers or storage that were
# away, a port that was not free yet, a signal.
_FROM_OUTSIDE = re.compile(
    r"out of memory|OutOfMemory|MemoryError|bad_alloc|[Cc]onnection|Timeout|[Tt]imed out"
    r"|[Uu]navailable|unreachable|Temporary failure|Max retries|EADDRINUSE|[Aa]ddress already in"
    r"|(?:HTTP|[Ss]tatus)\D{0,20}(?:429|50\d)\b|\b(?:429|50\d) (?:Server|Client) Error"
    r"|Stale file handle|Input/output error|Remote I/O|Transport endpoint"
    r"|SignalException|KeyboardInterrupt"
)
_FRAME = re.compile(r'^\s*File "')
# Names of temporary files, addresses of objects, hashes and ids.
_NAMES = re.compile(
    r"\btmp[._-]?\w{6,}|\b0x[0-9a-fA-F]+|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
    r"|\b(?=[a-z]*\d)(?=\d*[a-z])[0-9a-z]{8,}\b|\b(?=[a-f]*\d)[0-9a-f]{5,}\b"
)
_NUMBERS = re.compile(r"\d[\d.:]*")


def failed_twice(evidence: Evidence) -> str:
    """Say that the program failed twice in a row in the same way at its start; or nothing.

    Its container ended with exit code 1 within a minute, both times with the same traceback and
    with no newer checkpoint, and no run of the job is known, or may be, that took longer.
    """
    runs = list(evidence.failed_runs.values())
    if len(runs) < 2 or not all(map(_was_short, runs)) or not _all_known(runs):
        return ""
    kind, running = evidence.kind, _running(evidence)
    of_nodes = _grouped((run for run in runs if run.node not in running), lambda run: run.node)
    if not any(_is_same(*of_node[-2:]) for of_node in of_nodes if len(of_node) > 1):
        return ""
    return (
        f"{kind.title(objects.name(evidence.job))} failed twice in the same way within a minute, "
        "so it is not started again; set retry_same_error=True to go on to "
        f"{kind.restart_limit_input or 'the limit of the job'}"
    )


def failed_once(evidence: Evidence) -> str:
    """Say that the program failed for a reason of its own; or nothing.

    For a kind whose restarts its inputs cannot limit. A rank that lost its peers is no reason: the
    first one to fail tells it.
    """
    own = (
        run
        for run in evidence.failed_runs.values()
        if not run.asked and not program_errors.is_about_peers(run.message)
    )
    if not any(own):
        return ""
    return (
        f"{evidence.kind.title(objects.name(evidence.job))} failed, and is not started again; set "
        "retry_same_error=True for the restarts of its runtime, or retries of the task"
    )


def _grouped(
    runs: Iterable[FailedRun], key: Callable[[FailedRun], object]
) -> list[list[FailedRun]]:
    groups: dict[object, list[FailedRun]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return list(groups.values())


def _running(evidence: Evidence) -> set[int]:
    """The nodes whose program has been started again: this time it may have got further."""
    kind = evidence.kind
    states = {
        kind.node_of(evidence.job, pod): container_status(pod, kind.container).get("state")
        for pod in evidence.pods.values()
    }
    return {node for node, state in states.items() if objects.dig(state, "running") is not None}


def _was_short(run: FailedRun) -> bool:
    return run.seconds is not None and 0 <= run.seconds < _AT_ITS_START


def _all_known(runs: list[FailedRun]) -> bool:
    """Whether every run of each pod was seen: one that was not may have taken hours."""
    pods = _grouped(runs, lambda run: run.uid)
    return all({run.number for run in pod} == set(range(len(pod))) for pod in pods)


def _is_same(before: FailedRun, last: FailedRun) -> bool:
    """Whether the program failed in both, one after the other, with the same error."""
    if any(run.code != _CODE or run.reason == "OOMKilled" or run.asked for run in (before, last)):
        return False
    if not (before.finished and last.started and before.finished <= last.started):
        return False
    if _checkpoint(last) > _checkpoint(before):
        return False
    error = _error(last)
    return bool(error) and error == _error(before)


def _checkpoint(run: FailedRun) -> int:
    """The newest checkpoint at its end; -1 where it reported none."""
    reported = failure_in(run.message)
    return -1 if reported is None or reported.checkpoint is None else reported.checkpoint


def _error(run: FailedRun) -> str:
    """The error that ended a run, without what differs from run to run; or an empty string."""
    reported = failure_in(run.message)
    if reported is not None:
        head, traceback = f"{reported.type}: {reported.message}", reported.traceback
    else:
        found = next(filter(None, map(_in_log, (run.message, run.log))), None)
        if found is None:
            return ""
        head, traceback = f"{found.type}: {found.message}", found.traceback
    words = f"{head}\n{traceback}"
    outside = _FROM_OUTSIDE.search(head) or program_errors.is_about_peers(words)
    return "" if outside or not traceback.strip() else "\n".join(_settled(words))


def _in_log(log: str) -> tracebacks.Raised | None:
    if program_errors.killed_rank({"": log}):
        return None
    found = tracebacks.first(log, program_errors.is_about_peers)
    return None if found is None or found.outlived else found


def _settled(words: str) -> Iterator[str]:
    for line in words.split("\n"):
        named = _NAMES.sub("#", line)
        # Another line of the program is another error.
        yield named if _FRAME.match(line) else _NUMBERS.sub("#", named)
