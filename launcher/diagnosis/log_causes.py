"""What a training program's own words say: its tracebacks, and what is known of torch's errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kfp_pytorch.launcher.constants import EXIT_TERMINATED
from kfp_pytorch.launcher.diagnosis import known_errors, tracebacks
from kfp_pytorch.launcher.diagnosis.pod_causes import (
    COLLECTIVE,
    EXCEPTION,
    EXIT_CODE,
    EXIT_HINTS,
    KILLED,
    KILLED_BY,
    Finding,
)
from kfp_pytorch.launcher.jobs.termination_messages import Failure, Outcome
from kfp_pytorch.launcher.kubernetes import objects, pod_status
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.kubernetes.pod_status import pod_phase
from kfp_pytorch.launcher.text import some
from kfp_pytorch.launcher.waiting.evidence import Evidence

_LOST_PEERS = re.compile(
    r"DistBackendError|DistNetworkError|DistStoreError|collective operation timeout"
    r"|[Cc]onnection (?:was )?(?:closed|reset) by (?:remote )?peer|Broken pipe|[Ss]ocket [Tt]imeout"
    r"|Timed out (?:waiting|after)|wait timeout|ncclRemoteError|monitoredBarrier"
    r"|NCCL communicator was aborted|connectFullMesh failed|ProcessGroupNCCL watchdog hang"
    r"|Application timeout caused pair closure|Rendezvous(?:Timeout|Connection|Closed)Error"
    # Training's own: another rank is gone.
    r"|PeerLostError"
)
# What torch calls by the same names, and is no other rank's doing.
_OWN_FAULT = re.compile(
    r"ncclUnhandledCudaError|ncclInvalidUsage|ncclInvalidArgument|unhandled cuda error"
    r"|invalid usage|shared memory segment|no socket interface found|EADDRINUSE"
)
# torchrun's summary of a process that a signal ended. The one that was the first comes last.
_CHILD = re.compile(r"^ *rank +: (\d+) \(local_rank: \d+\)\n *exitcode +: -(\d+)", re.MULTILINE)
_OPERATION = re.compile(r"OpType=(\w+).{0,300}?ran for (\d+) milliseconds", re.DOTALL)
_GLOO = re.compile(r"Timed out waiting (\d+)ms for (\w+) operation")
_WAITED = re.compile(r"[\[ ][Rr]ank ?(\d+)\][^\n]{0,200}?(?:Watchdog caught|[Tt]ime[d ]*out)")
_AT = re.compile(r"[\[ ]Rank (\d+)\] Watchdog caught[^\n]{0,80}?SeqNum=(\d+)")
_PEER = re.compile(r"(?:(?:closed|reset) by (?:remote )?peer |remote=)\[?([\da-f.:]+)\]?")
_BARRIER = re.compile(r"monitoredBarrier(?: in (\d+) ?ms)?")
_MISSING = re.compile(
    r"[Rr]anks? \[?([\d, ]+?)\]? failed to pass monitoredBarrier"
    r"|missing ranks?:? \[?([\d, ]+)|rank ([\d]+) has gone"
)
_JOINED = re.compile(r"(\d+)/(\d+) (?:clients|workers) joined")
_ADDRESS = re.compile(
    r"(?:host not found|not known|failed to connect|connect\(\) timed out|Connection refused)"
    r"[^\n]{0,120}?\[?([a-z0-9][\w.-]*)[\],: ]+(\d{4,5})"
)


_FIX_PROGRAM = "Correct the program or its arguments and run again."
_TRACEBACK_BELOW = "Correct the program or its arguments and run again; the traceback is below."


@dataclass(frozen=True)
class Error:
    """The first error of a training program.

    Attributes:
        pod: The pod that it happened on.
        rank: The rank; None where it was not said.
        type: The exception's class.
        message: Its words.
        traceback: Its traceback.
    """

    pod: str
    rank: int | None
    type: str
    message: str
    traceback: str

    @property
    def lost_peers(self) -> bool:
        """Whether it only tells of other ranks that were lost or late."""
        return _of_peers(str(self))

    def __str__(self) -> str:
        return f"{self.type}: {self.message}\n{self.traceback}"


def errors(evidence: Evidence, outcome: Outcome, logs: Mapping[str, str]) -> list[Error]:
    """Return the errors of the training programs, the most telling first.

    Args:
        evidence: What was seen of the job.
        outcome: What the containers said; first by the time of their record.
        logs: The last lines of each pod's log; for containers that said nothing.

    Returns:
        Errors; those that only tell of lost peers come last.
    """
    found = [_error(said) for said in outcome.failures if said.type or said.message]
    said = {error.pod for error in found}
    failed: dict[str, int] = {}
    for end in filter(pod_status.trains, pod_status.failed_ends(evidence.pods.values())):
        failed.setdefault(end.pod, end.exit_code)
    for pod in [*failed, *(pod for pod in logs if pod not in failed)]:
        if pod not in said:
            found.extend(_in_log(pod, logs.get(pod, ""), failed.get(pod)))
    return sorted(found, key=lambda error: error.lost_peers)


def _in_log(pod: str, log: str, code: int | None) -> Iterator[Error]:
    found = tracebacks.first(log, _of_peers)
    killed = code in KILLED_BY or any(end.weight == KILLED for end in _killed({pod: log}))
    # It was handled: what nobody handles ends a program by itself.
    if found and not (killed and found.outlived):
        yield Error(pod, found.rank, found.type, found.message, found.traceback)


def _of_peers(words: str) -> bool:
    return bool(_LOST_PEERS.search(words)) and not _OWN_FAULT.search(words)


def _error(said: Failure) -> Error:
    nccl = tracebacks.nccl_words(said.message)
    whole = said.traceback or (said.message if nccl else "")
    return Error(said.pod, said.rank, said.type, nccl or said.message, whole)


def find(evidence: Evidence, found: list[Error], logs: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what the program's words say.

    Args:
        evidence: What was seen of the job.
        found: The program's errors, as `errors` returns them.
        logs: The last lines of each pod's log.
    """
    if found and not found[0].lost_peers:
        first = found[0]
        words = f"{first.type}: {first.message}" if first.message else first.type
        yield Finding(EXCEPTION, f"{_who(first)} raised {words}", _advice(words, first.traceback))
    everything = "\n".join([*logs.values(), *map(str, found)])
    own = bool(found) and bool(_OWN_FAULT.search(str(found[0])))
    lost = _LOST_PEERS.search(everything) or _ADDRESS.search(everything)
    yield from _killed(logs)
    if lost and (not own or found[-1].lost_peers):
        yield _collective(evidence, found, everything)
    elif not found:
        line, advice = known_errors.known(everything)
        if line:
            yield Finding(EXCEPTION - 5, f"The log says: {line}", advice)


def _killed(logs: Mapping[str, str]) -> Iterator[Finding]:
    """A rank that a signal ended: the container, which is torchrun, only ends with exit code 1."""
    for pod, log in logs.items():
        ends = [(rank, 128 + int(number)) for rank, number in _CHILD.findall(log)]
        # torchrun itself ends the others, with SIGTERM.
        ends = [(rank, code) for rank, code in ends if code != EXIT_TERMINATED]
        if ends:
            rank, code = ends[-1]
            yield Finding(
                KILLED if code in KILLED_BY else EXIT_CODE + 1,
                f"Rank {rank} ({pod}) was ended by {pod_status.signal_name(code)}",
                EXIT_HINTS.get(code, _FIX_PROGRAM),
            )
            return


def _who(error: Error) -> str:
    return f"Rank {error.rank} ({error.pod})" if error.rank is not None else error.pod


def _advice(words: str, traceback: str) -> str:
    known = known_errors.advice(f"{words}\n{traceback}")
    return known or (_TRACEBACK_BELOW if traceback else _FIX_PROGRAM)


def _collective(evidence: Evidence, found: list[Error], text: str) -> Finding:
    missing, absent = missing_ranks(evidence.job, found, text), _not_started(evidence)
    what = _interruption(text, _peer(evidence, text))
    if missing:
        pods = some(dict.fromkeys(_pod_of(evidence.job, rank) for rank in missing))
        ranks = some(map(str, missing), 8)
        what += f"; missing: rank{'s' if len(missing) > 1 else ''} {ranks} ({pods})"
    elif absent:
        what += f"; not started: {some(absent)}"
    return Finding(
        COLLECTIVE,
        what,
        "Look at the missing ranks first: one that crashed, hung or never started makes all others "
        "wait. If none did, the pods cannot reach each other: check network policies and a mesh.",
    )


def _interruption(text: str, peer: str) -> str:
    """Say what ended the ranks' exchange, as precisely as their words do."""
    if said := _OPERATION.search(text):
        return f"NCCL {said[1]} timed out after {int(said[2]) // 1000} s"
    if said := _GLOO.search(text):
        return f"Gloo {said[2]} timed out after {int(said[1]) // 1000} s"
    if said := _JOINED.search(text):
        return f"Only {said[1]} of {said[2]} processes came to the rendezvous"
    if peer:
        return f"A rank lost the connection to {peer}"
    if said := _ADDRESS.search(text):
        return f"The rendezvous at {said[1]}:{said[2]} could not be reached"
    if "watchdog hang" in text:
        return "NCCL's watchdog hung: an operation on a GPU did not come to an end"
    if nccl := tracebacks.nccl_words(text):
        return f"NCCL says: {nccl}"
    if "Rendezvous" in text and "ClosedError" in text:
        return "The rendezvous was closed before every process had come"
    if said := _BARRIER.search(text):
        return "Not every rank came to a barrier" + (
            f" within {int(said[1]) // 1000} s" if said[1] else ""
        )
    return "A rank lost the connection to another one"


def missing_ranks(job: Object, found: list[Error], text: str) -> list[int]:
    """Return the ranks that others waited for, as far as the words tell.

    Args:
        job: The PyTorchJob, which says how many ranks there are.
        found: The programs' errors.
        text: All logs and messages.

    Returns:
        Ranks, ascending; empty where nothing tells.
    """
    named = [match[1] or match[2] or match[3] for match in _MISSING.finditer(text)]
    if named:
        return sorted({int(rank) for part in named for rank in re.findall(r"\d+", part)})
    waited = {int(rank) for rank in _WAITED.findall(text)}
    waited |= {error.rank for error in found if error.lost_peers and error.rank is not None}
    everyone = set(range(_world_size(job)))
    missing = everyone - waited
    if waited and not missing:
        return _behind(text)
    return sorted(missing) if waited and len(missing) < len(everyone) / 2 + 1 else []


def _behind(text: str) -> list[int]:
    """Return the ranks that were at an earlier operation than others when all had waited."""
    at: dict[int, int] = {}
    for rank, number in _AT.findall(text):
        at[int(rank)] = min(int(number), at.get(int(rank), int(number)))
    first, last = min(at.values(), default=0), max(at.values(), default=0)
    return sorted(rank for rank, number in at.items() if number == first) if first < last else []


def _peer(evidence: Evidence, text: str) -> str:
    """Return the pod whose address a message about a lost peer names, or an empty string."""
    pods = {str(objects.dig(p, "status", "podIP")): p for p in evidence.pods.values()}
    found = (pods.get(address) for address in _PEER.findall(text))
    return next((objects.name(pod) for pod in found if pod), "")


def _not_started(evidence: Evidence) -> list[str]:
    """Return the pods of the job that were not made, or have not run yet."""
    made = {name for name, pod in evidence.pods.items() if pod_phase(pod) != "Pending"}
    names = (_pod_at(evidence.job, node) for node in pod_status.nodes(evidence.job))
    return [name for name in names if made and name not in made]


def _world_size(job: Object) -> int:
    return len(pod_status.nodes(job)) * _nproc(job)


def _nproc(job: Object) -> int:
    written = str(objects.dig(job, "spec", "nprocPerNode") or "")
    return int(written) if written.isdecimal() else 0


def _pod_of(job: Object, rank: int) -> str:
    return _pod_at(job, rank // max(1, _nproc(job)))


def _pod_at(job: Object, node: int) -> str:
    return f"{objects.name(job)}-{f'worker-{node - 1}' if node else 'master-0'}"
