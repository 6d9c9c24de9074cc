"""Reads the status of a Pod object, whatever is missing in it. No I/O."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kfp_pytorch.launcher.kubernetes.objects import Object, condition, dig, each, name, parse_time
from kfp_pytorch.launcher.text import some

# The reasons of a node controller, where it gives one.
_NODE_LOST = ("NodeNotReady", "NodeStatusUnknown", "NodeLost")


@dataclass(frozen=True)
class ContainerEnd:
    """One end of a container."""

    pod: str  # the pod's name
    container: str  # the container's name
    exit_code: int  # its exit code
    reason: str  # the kubelet's word, such as `Error` or `OOMKilled`
    message: str  # the termination message; the log's end where the container wrote none
    finished_at: str  # when it ended, as the kubelet wrote it; empty if it did not
    current: bool  # whether the container is still so; False for the state before a restart


def statuses(pod: Object, *, init: bool = False) -> list[Object]:
    """Return the statuses of a pod's containers, or of its init containers."""
    return each(pod, "status", "initContainerStatuses" if init else "containerStatuses")


def container_ends(pod: Object) -> Iterator[ContainerEnd]:
    """Yield every end of the pod's containers that its status has, latest first."""
    for status in [*statuses(pod), *statuses(pod, init=True)]:
        for part in ("state", "lastState"):
            end = dig(status, part, "terminated")
            if isinstance(end, dict):
                code = end.get("exitCode")
                yield ContainerEnd(
                    pod=name(pod),
                    container=str(status.get("name") or ""),
                    exit_code=code if isinstance(code, int) else -1,
                    reason=str(end.get("reason") or ""),
                    message=str(end.get("message") or ""),
                    finished_at=str(end.get("finishedAt") or ""),
                    current=part == "state",
                )


def is_sidecar(pod: Object, name: str) -> bool:
    """Return whether an init container runs beside the others, as long as the pod does."""
    named = (c for c in each(pod, "spec", "initContainers") if c.get("name") == name)
    return any(c.get("restartPolicy") == "Always" for c in named)


def failed_ends(pods: Iterable[Object]) -> list[ContainerEnd]:
    """Return the ends that were failures, the first to fail first."""
    failed = [end for pod in pods for end in container_ends(pod) if end.exit_code != 0]
    return sorted(failed, key=lambda end: (end.finished_at == "", end.finished_at))


def waiting_containers(pod: Object) -> list[tuple[str, str, str]]:
    """Return container, reason and the kubelet's message for each container that waits."""
    found = []
    for status in [*statuses(pod, init=True), *statuses(pod)]:
        state = dig(status, "state", "waiting")
        if isinstance(state, dict) and state.get("reason"):
            message = str(state.get("message") or "")
            found.append((str(status.get("name") or ""), str(state["reason"]), message))
    return found


def restarts(pod: Object) -> int:
    """Return how often the pod's containers were restarted in place."""
    counts = [status.get("restartCount") for status in statuses(pod)]
    return sum(count for count in counts if isinstance(count, int))


def reason_still_running(pod: Object, main: str) -> str:
    """Say which containers keep a pod alive whose main one succeeded; empty if none does."""
    done = any(
        end.container == main and end.exit_code == 0 and end.current for end in container_ends(pod)
    )
    alive = [str(s.get("name")) for s in statuses(pod) if dig(s, "state", "running") is not None]
    if not done or not alive:
        return ""
    return (
        f"{name(pod)} has trained to its end, but its container {some(alive)} runs on and keeps "
        "the job running"
    )


def container(pod: Object, wanted: str) -> Object:
    """Return a container's spec by name, or an empty object."""
    found = [*each(pod, "spec", "containers"), *each(pod, "spec", "initContainers")]
    return next((item for item in found if item.get("name") == wanted), {})


def node_lost(pod: Object) -> bool:
    """Return whether the pod's node does not report to the control plane.

    Its node controller then sets Ready to False, mostly without a reason (Kubernetes
    pkg/controller/util/node, MarkPodsNotReady); the kubelet always gives one.
    """
    ready = condition(pod, "Ready")
    if ready.get("status") not in ("False", "Unknown"):
        return False
    reason = ready.get("reason")
    unsaid = not reason and condition(pod, "ContainersReady").get("status") == "True"
    return unsaid or reason in _NODE_LOST


def signal_name(code: int) -> str:
    """Return the signal of an exit code, such as `SIGKILL` for 137; empty where it is none."""
    try:
        return signal.Signals(code - 128).name if code > 128 else ""
    except ValueError:
        return ""


def describe_exit_code(code: int) -> str:
    """Say what an exit code means, such as `exit code 137 (SIGKILL)`."""
    meaning = {126: "not executable", 127: "command not found"}.get(code) or signal_name(code)
    return f"exit code {code} ({meaning})" if meaning else f"exit code {code}"


def container_statuses(pod: Object) -> list[Object]:
    """The statuses of a pod's containers, init containers first."""
    return [*statuses(pod, init=True), *statuses(pod)]


def container_status(pod: Object, name: str) -> Object:
    """The status of one container, or an empty object."""
    return next((s for s in container_statuses(pod) if s.get("name") == name), {})


def is_ready(pod: Object) -> bool:
    """Return whether all containers of a pod are ready; one without statuses is not."""
    return all(status.get("ready") is True for status in statuses(pod) or [{}])


def pod_phase(pod: Object) -> str:
    """The pod's phase, or `Unknown`."""
    return str(dig(pod, "status", "phase") or "Unknown")


def is_running_or_ended(pod: Object) -> bool:
    """Whether the pod runs, or has run to an end. One that is being deleted does not."""
    phase = pod_phase(pod)
    return phase in ("Succeeded", "Failed") or (phase == "Running" and not is_terminating(pod))


def deletion_requested(pod: Object) -> datetime | None:
    """When the pod was deleted: its deletionTimestamp is later by the grace period."""
    at = parse_time(dig(pod, "metadata", "deletionTimestamp"))
    grace = dig(pod, "metadata", "deletionGracePeriodSeconds")
    return at - timedelta(seconds=grace) if at and isinstance(grace, int) else at


def is_terminating(pod: Object) -> bool:
    """Whether the pod is being deleted."""
    return bool(dig(pod, "metadata", "deletionTimestamp"))


def reason_not_running(pod: Object) -> str:
    """Why a pod does not run yet, as the scheduler or the kubelet reports it; or empty."""
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return f"{scheduled.get('reason', 'not scheduled')}: {scheduled.get('message', '')}"
    for _, reason, message in waiting_containers(pod):
        return f"{reason}: {message}" if message else reason
    deleted_by = parse_time(dig(pod, "metadata", "deletionTimestamp"))
    if deleted_by is None:
        return ""
    node = dig(pod, "spec", "nodeName") or "its node"
    # The timestamp is the end of its grace period.
    if node_lost(pod) and deleted_by < datetime.now(UTC):
        return f"it is being deleted, and does not go while {node} cannot be reached"
    return "it is being deleted"


def belongs_to(pod: Object, job: Object) -> bool:
    """Whether a pod is of this job, not of an earlier one of the same name.

    A pod without an owner that is older than the job is another's.
    """
    if not name(pod):
        return False
    owners = each(pod, "metadata", "ownerReferences")
    if owners:
        return any(owner.get("uid") == dig(job, "metadata", "uid") for owner in owners)
    made = [parse_time(dig(obj, "metadata", "creationTimestamp")) for obj in (pod, job)]
    return made[0] is None or made[1] is None or made[0] >= made[1]
