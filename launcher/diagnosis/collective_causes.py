"""Causes: ranks lost or waited for each other, by torch's messages. Pure functions of the facts."""

from __future__ import annotations

import re

from kfp_pytorch.launcher.diagnosis import tracebacks
from kfp_pytorch.launcher.diagnosis.facts import Cause, Facts
from kfp_pytorch.launcher.diagnosis.program_errors import LOST_PEERS, OWN_FAULT, Error
from kfp_pytorch.launcher.kubernetes import objects
from kfp_pytorch.launcher.kubernetes.pod_status import pod_phase
from kfp_pytorch.launcher.text import some
from kfp_pytorch.launcher.waiting.evidence import Evidence

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


def peers_lost(facts: Facts) -> Cause | None:
    """Ranks lost their connection to others, or waited for some that did not come."""
    errors, text = facts.errors, facts.words
    own = bool(errors) and bool(OWN_FAULT.search(str(errors[0])))
    lost = LOST_PEERS.search(text) or _ADDRESS.search(text)
    if not lost or (own and not errors[-1].lost_peers):
        return None
    evidence = facts.evidence
    missing, absent = _missing_ranks(evidence, errors, text), _not_started(evidence)
    what = _interruption(text, _peer(evidence, text))
    if missing:
        pods = some(dict.fromkeys(_pod_of(evidence, rank) for rank in missing))
        ranks = some(map(str, missing), 8)
        what += f"; missing: rank{'s' if len(missing) > 1 else ''} {ranks} ({pods})"
    elif absent:
        what += f"; not started: {some(absent)}"
    return Cause(
        what,
        "Look at the missing ranks first: one that crashed, hung or never started makes all others "
        "wait. If none did, the pods cannot reach each other: check network policies and a mesh.",
    )


def _interruption(text: str, peer: str) -> str:
    """Return what ended the ranks' communication, as precisely as their logs say it."""
    if match := _OPERATION.search(text):
        return f"NCCL {match[1]} timed out after {int(match[2]) // 1000} s"
    if match := _GLOO.search(text):
        return f"Gloo {match[2]} timed out after {int(match[1]) // 1000} s"
    if match := _JOINED.search(text):
        return f"Only {match[1]} of {match[2]} processes came to the rendezvous"
    if peer:
        return f"A rank lost the connection to {peer}"
    if match := _ADDRESS.search(text):
        return f"The rendezvous at {match[1]}:{match[2]} could not be reached"
    if "watchdog hang" in text:
        return "NCCL's watchdog hung: an operation on a GPU did not end"
    if nccl := tracebacks.nccl_words(text):
        return f"NCCL says: {nccl}"
    if "Rendezvous" in text and "ClosedError" in text:
        return "The rendezvous was closed before every process had come"
    if match := _BARRIER.search(text):
        return "Not every rank came to a barrier" + (
            f" within {int(match[1]) // 1000} s" if match[1] else ""
        )
    return "A rank lost the connection to another one"


def _missing_ranks(evidence: Evidence, found: list[Error], text: str) -> list[int]:
    """Return the ranks that others waited for, ascending, as far as the logs say it."""
    named = [match[1] or match[2] or match[3] for match in _MISSING.finditer(text)]
    if named:
        return sorted({int(rank) for part in named for rank in re.findall(r"\d+", part)})
    kind, job = evidence.kind, evidence.job
    waited = {int(rank) for rank in _WAITED.findall(text)}
    waited |= {error.rank for error in found if error.lost_peers and error.rank is not None}
    everyone = set(range(kind.num_nodes(job) * kind.processes_per_node(job)))
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
    kind, job = evidence.kind, evidence.job
    ran = {kind.node_of(job, pod) for pod in evidence.pods.values() if pod_phase(pod) != "Pending"}
    missing = sorted(set(range(kind.num_nodes(job))) - ran) if ran else []
    return [kind.node_name(job, node) for node in missing]


def _pod_of(evidence: Evidence, rank: int) -> str:
    kind, job = evidence.kind, evidence.job
    return kind.node_name(job, rank // max(1, kind.processes_per_node(job)))
