"""What a Pod object says, read without trusting that any field is there."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kfp_pytorch.launcher.constants import PYTORCH_CONTAINER
from kfp_pytorch.launcher.evidence import Object

_REPLICA_TYPE = "training.kubeflow.org/replica-type"
_REPLICA_INDEX = "training.kubeflow.org/replica-index"
# What a node controller writes where it gives a reason.
_NODE_LOST = ("NodeNotReady", "NodeStatusUnknown", "NodeLost")


@dataclass(frozen=True)
class Ended:
    """One end of a container.

    Attributes:
        pod: The pod's name.
        container: The container's name.
        exit_code: Its exit code.
        reason: The kubelet's word, such as `Error` or `OOMKilled`.
        message: The termination message; the log's end where the container wrote none.
        finished_at: When it ended, as the kubelet wrote it; empty if it did not.
        current: Whether the container is still so; False for the state before a restart.
    """

    pod: str
    container: str
    exit_code: int
    reason: str
    message: str
    finished_at: str
    current: bool


def name(obj: Object) -> str:
    """Return an object's name, or an empty string."""
    return str(dig(obj, "metadata", "name") or "")


def dig(obj: Any, *keys: str) -> Any:
    """Return what lies below these keys, or None where one is missing or no object."""
    for key in keys:
        if not isinstance(obj, dict):
            return None
        obj = obj.get(key)
    return obj


def each(obj: Any, *keys: str) -> list[Object]:
    """Return the objects in the list below these keys; none where there is no list."""
    found = dig(obj, *keys)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def replica(pod: Object) -> tuple[str, int]:
    """Return the pod's role, `master` or `worker`, and its index; for sorting and for people."""
    index = str(dig(pod, "metadata", "labels", _REPLICA_INDEX) or "")
    role = str(dig(pod, "metadata", "labels", _REPLICA_TYPE) or "")
    return role, int(index) if index.isdecimal() else 0


def nodes(job: Object) -> range:
    """Return the numbers of a job's nodes: 0 for the master, or for worker 0 without one."""
    counts = [
        dig(job, "spec", "pytorchReplicaSpecs", role, "replicas") for role in ("Master", "Worker")
    ]
    return range(sum(count for count in counts if isinstance(count, int)))


def in_order(pods: Iterable[Object]) -> list[Object]:
    """Sort pods by rank: the master, then the workers by number."""
    return sorted(pods, key=lambda pod: (*replica(pod), name(pod)))


def statuses(pod: Object, *, init: bool = False) -> list[Object]:
    """Return the statuses of a pod's containers, or of its init containers."""
    return each(pod, "status", "initContainerStatuses" if init else "containerStatuses")


def ends(pod: Object) -> Iterator[Ended]:
    """Yield every end of the pod's containers that its status still knows, latest first."""
    for status in [*statuses(pod), *statuses(pod, init=True)]:
        for part in ("state", "lastState"):
            end = dig(status, part, "terminated")
            if isinstance(end, dict):
                code = end.get("exitCode")
                yield Ended(
                    pod=name(pod),
                    container=str(status.get("name") or ""),
                    exit_code=code if isinstance(code, int) else -1,
                    reason=str(end.get("reason") or ""),
                    message=str(end.get("message") or ""),
                    finished_at=str(end.get("finishedAt") or ""),
                    current=part == "state",
                )


def trains(end: Ended) -> bool:
    """Return whether an end is of the container that trains; one that is not named is."""
    return end.container in (PYTORCH_CONTAINER, "")


def is_sidecar(pod: Object, name: str) -> bool:
    """Return whether an init container runs beside the others, as long as the pod does."""
    named = (c for c in each(pod, "spec", "initContainers") if c.get("name") == name)
    return any(c.get("restartPolicy") == "Always" for c in named)


def failed_ends(pods: Iterable[Object]) -> list[Ended]:
    """Return the ends that were failures, the first to fail first."""
    failed = [end for pod in pods for end in ends(pod) if end.exit_code != 0]
    return sorted(failed, key=lambda end: (end.finished_at == "", end.finished_at))


def waiting(pod: Object) -> list[tuple[str, str, str]]:
    """Return container, reason and the kubelet's words for each container that waits."""
    found = []
    for status in [*statuses(pod, init=True), *statuses(pod)]:
        state = dig(status, "state", "waiting")
        if isinstance(state, dict) and state.get("reason"):
            words = str(state.get("message") or "")
            found.append((str(status.get("name") or ""), str(state["reason"]), words))
    return found


def restarts(pod: Object) -> int:
    """Return how often the pod's containers were restarted in place."""
    counts = [status.get("restartCount") for status in statuses(pod)]
    return sum(count for count in counts if isinstance(count, int))


def lingering(pod: Object) -> str:
    """Say which containers keep a pod alive that has trained to its end; empty if none does."""
    done = any(
        end.container == PYTORCH_CONTAINER and end.exit_code == 0 and end.current
        for end in ends(pod)
    )
    alive = [str(s.get("name")) for s in statuses(pod) if dig(s, "state", "running") is not None]
    if not done or not alive:
        return ""
    return (
        f"{name(pod)} has trained to its end, but its container {some(alive)} runs on and keeps "
        "the job running"
    )


def container(pod: Object, wanted: str = PYTORCH_CONTAINER) -> Object:
    """Return a container's spec by name, or an empty object."""
    found = [*each(pod, "spec", "containers"), *each(pod, "spec", "initContainers")]
    return next((item for item in found if item.get("name") == wanted), {})


def condition(obj: Object, wanted: str) -> Object:
    """Return a condition of an object by type, or an empty object.

    There should be one of a type. Of several, the one that changed last counts, and of those that
    changed at once one that is not True.
    """
    found = [c for c in each(obj, "status", "conditions") if c.get("type") == wanted]
    return max(found, key=_freshness, default={})


def node_lost(pod: Object) -> bool:
    """Return whether the pod's node is out of the control plane's sight.

    Its node controller then sets Ready to False, mostly without a reason (Kubernetes
    pkg/controller/util/node, MarkPodsNotReady); the kubelet always gives one.
    """
    ready, reason = condition(pod, "Ready"), dig(condition(pod, "Ready"), "reason")
    unsaid = not reason and condition(pod, "ContainersReady").get("status") == "True"
    return ready.get("status") in ("False", "Unknown") and (unsaid or reason in _NODE_LOST)


def _freshness(condition: Object) -> tuple[str, bool]:
    return str(condition.get("lastTransitionTime") or ""), condition.get("status") != "True"


def signal_name(code: int) -> str:
    """Return the signal of an exit code, such as `SIGKILL` for 137; empty where it is none."""
    try:
        return signal.Signals(code - 128).name if code > 128 else ""
    except ValueError:
        return ""


def exit_words(code: int) -> str:
    """Say what an exit code means, such as `exit code 137 (SIGKILL)`."""
    meaning = {126: "not executable", 127: "command not found"}.get(code) or signal_name(code)
    return f"exit code {code} ({meaning})" if meaning else f"exit code {code}"


def moment(written: Any) -> datetime | None:
    """Read a time as Kubernetes writes it, in UTC where it names no zone; None if it is none."""
    try:
        read = datetime.fromisoformat(str(written).replace("Z", "+00:00"))
    except ValueError:
        return None
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def counted(count: int, what: str) -> str:
    """Say how many: `1 restart`, `2 restarts`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def some(names: Iterable[str], most: int = 3) -> str:
    """Join names for a sentence: the first few, then a count."""
    listed = list(names)
    if len(listed) <= most + 1:
        return " and ".join(filter(None, (", ".join(listed[:-1]), *listed[-1:])))
    return f"{', '.join(listed[:most])} and {len(listed) - most} more"
