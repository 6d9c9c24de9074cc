"""Finds the errors of the training programs, in their termination messages and logs. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kfp_pytorch.launcher import text
from kfp_pytorch.launcher.constants import EXIT_TERMINATED
from kfp_pytorch.launcher.diagnosis import tracebacks
from kfp_pytorch.launcher.jobs.termination_messages import Failure, Outcome, is_ours
from kfp_pytorch.launcher.kubernetes import pod_status
from kfp_pytorch.launcher.runtime.printing import printable
from kfp_pytorch.launcher.waiting.evidence import Evidence

# SIGBUS, SIGKILL and SIGSEGV: no process ends like this because it lost its peers.
KILLED_BY = (135, 137, 139)
LOST_PEERS = re.compile(
    r"DistBackendError|DistNetworkError|DistStoreError|collective operation timeout"
    r"|[Cc]onnection (?:was )?(?:closed|reset) by (?:remote )?peer|Broken pipe|[Ss]ocket [Tt]imeout"
    r"|Timed out (?:waiting|after)|wait timeout|ncclRemoteError|monitoredBarrier"
    r"|NCCL communicator was aborted|connectFullMesh failed|ProcessGroupNCCL watchdog hang"
    r"|Application timeout caused pair closure|Rendezvous(?:Timeout|Connection|Closed)Error"
    # Of kfp_pytorch.training: another rank was lost.
    r"|PeerLostError"
)
# torch uses the same exceptions for these, but the cause is on the rank itself.
OWN_FAULT = re.compile(
    r"ncclUnhandledCudaError|ncclInvalidUsage|ncclInvalidArgument|unhandled cuda error"
    r"|invalid usage|shared memory segment|ibv_reg_mr|no socket interface found|EADDRINUSE"
)
# torchrun's summary of a process that a signal ended. The one that was the first comes last.
_CHILD = re.compile(r"^ *rank +: (\d+) \(local_rank: \d+\)\n *exitcode +: -(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Error:
    """The first error of a training program."""

    pod: str  # the pod that it happened on
    rank: int | None  # the rank; None where it is not known
    type: str  # the exception's class
    message: str  # its message
    traceback: str  # its traceback

    @property
    def lost_peers(self) -> bool:
        """Whether it only says that other ranks were lost or late."""
        return is_about_peers(str(self))

    def __str__(self) -> str:
        return f"{self.type}: {self.message}\n{self.traceback}"


@dataclass(frozen=True)
class KilledRank:
    """A rank that a signal ended: its container, which is torchrun, only ends with exit code 1."""

    pod: str
    rank: str
    code: int


def readable_logs(evidence: Evidence) -> dict[str, str]:
    """Return each pod's last lines; its termination message where the log could not be read.

    The message may say more than the log: a kubelet's own last line, such as why the log is cut.
    A message in JSON is not a line of a log.
    """
    # Colours of terminals are removed.
    logs = {pod: printable(text.settled(log)) for pod, log in evidence.logs.items()}
    logs = {pod: log for pod, log in logs.items() if log.strip()}
    for pod in evidence.kind.in_order(evidence.pods.values()):
        for end in pod_status.container_ends(pod):
            message = text.settled(end.message).strip()
            if message and not is_ours(message):
                log = logs.setdefault(end.pod, message)
                last = message.rpartition("\n")[2]
                own = evidence.kind.trains(end) and end.exit_code and end.current
                if own and last not in log and not last.startswith("{"):
                    logs[end.pod] = f"{log}\n{last}"
    return logs


def errors(evidence: Evidence, outcome: Outcome, logs: Mapping[str, str]) -> list[Error]:
    """Return the errors of the training programs, those about lost peers last.

    `outcome`: the termination messages; first by the time of their record. `logs`: the last lines
    of each pod's log; for containers without a message.
    """
    found = [_reported(failure) for failure in outcome.failures if failure.type or failure.message]
    reported = {error.pod for error in found}
    failed: dict[str, int] = {}
    for end in filter(evidence.kind.trains, pod_status.failed_ends(evidence.pods.values())):
        failed.setdefault(end.pod, end.exit_code)
    for pod in [*failed, *(pod for pod in logs if pod not in failed)]:
        if pod not in reported:
            found.extend(_in_log(pod, logs.get(pod, ""), failed.get(pod)))
    return sorted(found, key=lambda error: error.lost_peers)


def is_about_peers(words: str) -> bool:
    """Whether an error's text only says that other ranks were lost or late."""
    return bool(LOST_PEERS.search(words)) and not OWN_FAULT.search(words)


def killed_rank(logs: Mapping[str, str]) -> KilledRank | None:
    """Return the first rank that a signal ended, by torchrun's summary in a log; or None."""
    for pod, log in logs.items():
        ends = [(rank, 128 + int(number)) for rank, number in _CHILD.findall(log)]
        # torchrun ends the others itself, with SIGTERM.
        ends = [(rank, code) for rank, code in ends if code != EXIT_TERMINATED]
        if ends:
            return KilledRank(pod, *ends[-1])
    return None


def _reported(failure: Failure) -> Error:
    nccl = tracebacks.nccl_words(failure.message)
    whole = failure.traceback or (failure.message if nccl else "")
    return Error(failure.pod, failure.rank, failure.type, nccl or failure.message, whole)


def _in_log(pod: str, log: str, code: int | None) -> Iterator[Error]:
    found = tracebacks.first(log, is_about_peers)
    rank = killed_rank({pod: log})
    killed = code in KILLED_BY or (rank is not None and rank.code in KILLED_BY)
    # An error before a kill that the program went on after was handled.
    if found and not (killed and found.outlived):
        yield Error(pod, found.rank, found.type, found.message, found.traceback)
