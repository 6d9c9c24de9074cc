"""A pod's status from the states of its containers, as the kubelet writes it.

Source: kubernetes `pkg/kubelet/kubelet_pods.go` (getPhase), `pkg/kubelet/status/generate.go` and
`pkg/kubelet/status/status_manager.go` (normalizeStatus).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kfp_pytorch.local import loopback
from kfp_pytorch.local.apiserver import objects

Object = dict[str, Any]

# What all of a pod's containers together may say when they end.
_MESSAGES_LIMIT = 12 * 1024


@dataclass
class ContainerState:
    """What is known of one container.

    Attributes:
        name: Its name.
        image: The image that it asks for.
        state: `waiting`, `running` or `terminated` with its details.
        last_state: The `terminated` of the process before this one, or nothing.
        restarts: How often it was started again.
        ready: Whether its readiness probe, if it has one, says so.
        started: Whether its startup probe, if it has one, has said so.
        sidecar: Whether it is an init container that runs as long as its pod.
        container_id: Names the process in the status.
    """

    name: str
    image: str
    state: Object = field(default_factory=dict)
    last_state: Object = field(default_factory=dict)
    restarts: int = 0
    ready: bool = False
    started: bool = False
    sidecar: bool = False
    container_id: str = ""

    @property
    def ended(self) -> Object:
        """The details of its end; empty while it has not ended for good."""
        return self.state.get("terminated") or {}

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return "running" in self.state

    @property
    def initialized(self) -> bool:
        """Whether, as an init container, it lets the next one start."""
        if self.sidecar:
            return self.started or bool(self.last_state or self.ended)
        return self.ended.get("exitCode") == 0

    @property
    def has_run(self) -> bool:
        """Whether it waits to be started *again*."""
        return "waiting" in self.state and bool(self.last_state)


def phase(initial: list[ContainerState], main: list[ContainerState], restart_policy: str) -> str:
    """The pod's phase.

    Args:
        initial: Its init containers.
        main: Its other containers.
        restart_policy: Its restart policy.
    """
    sidecars = [each for each in initial if each.sidecar]
    for container in initial:
        if container.ended.get("exitCode") and restart_policy == "Never" and not container.sidecar:
            return "Failed"
        if not (container.ended or container.initialized):
            return "Pending"
    if any("waiting" in each.state and not each.has_run for each in main):
        return "Pending"
    going = any(each.running or each.has_run for each in (*main, *sidecars))
    if going or restart_policy == "Always":
        return "Running"
    return "Failed" if any(each.ended["exitCode"] for each in main) else "Succeeded"


def pod_status(
    pod: Object,
    initial: list[ContainerState],
    main: list[ContainerState],
    now: datetime,
    evicted: Object | None = None,
) -> Object:
    """The whole status of a pod that is bound to this machine.

    Args:
        pod: The pod, with its status so far.
        initial: Its init containers.
        main: Its other containers.
        now: The time, in UTC.
        evicted: The `reason` and the `message` for which the kubelet ends the pod, if it does. As
            in a real one they are told once nothing of the pod runs.
    """
    spec, old = pod["spec"], pod.get("status") or {}
    new_phase = phase(initial, main, spec.get("restartPolicy", "Always"))
    # A pod that is deleted is not started again: what has ended has ended.
    all_ended = all(each.ended for each in (*initial, *main))
    if objects.deleting(pod) and main and all_ended:
        new_phase = "Failed" if any(each.ended["exitCode"] for each in main) else "Succeeded"
    over: Object = {}
    if evicted and all_ended:
        new_phase, over = "Failed", evicted
    status = {
        **{key: old[key] for key in ("qosClass", "reason", "message") if key in old},
        **over,
        "phase": new_phase,
        "conditions": _conditions(old, initial, main, new_phase, objects.timestamp(now)),
        "hostIP": loopback.ADDRESS,
        "hostIPs": [{"ip": loopback.ADDRESS}],
        "podIP": loopback.ADDRESS,
        "podIPs": [{"ip": loopback.ADDRESS}],
        "startTime": old.get("startTime") or objects.timestamp(now),
        "containerStatuses": [_container(each) for each in main],
    }
    if initial:
        status["initContainerStatuses"] = [
            {**_container(each), "ready": each.ready if each.sidecar else each.initialized}
            for each in initial
        ]
    _share_messages(status, len(initial) + len(main))
    return status


def _container(container: ContainerState) -> Object:
    return {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "containerID": container.container_id,
        "state": objects.copy(container.state),
        "lastState": objects.copy(container.last_state),
        "restartCount": container.restarts,
        "ready": container.ready,
        "started": container.started,
    }


def _share_messages(status: Object, containers: int) -> None:
    """Cut the containers' last words to their share of what a pod may say."""
    share = _MESSAGES_LIMIT // max(containers, 1)
    for container in (*status.get("initContainerStatuses", ()), *status["containerStatuses"]):
        for state in ("state", "lastState"):
            ended = container[state].get("terminated")
            if ended and "message" in ended:
                head = ended["message"].encode()[:share]
                ended["message"] = head.decode(errors="ignore")


def _conditions(
    old: Object,
    initial: list[ContainerState],
    main: list[ContainerState],
    new_phase: str,
    now: str,
) -> list[Object]:
    uninitialized = [each.name for each in initial if not each.initialized]
    sidecars = [each for each in initial if each.sidecar]
    unready = [each.name for each in (*sidecars, *main) if not each.ready]
    finished = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(new_phase, "")
    initialized = _verdict(uninitialized, "ContainersNotInitialized", "incomplete")
    if finished and not uninitialized:
        initialized["reason"] = "PodCompleted"
    ready = _verdict(unready, "ContainersNotReady", "unready")
    if finished:
        ready = {"status": "False", "reason": finished}
    wanted = [
        {"type": "PodReadyToStartContainers", "status": "False" if finished else "True"},
        {"type": "Initialized", **initialized},
        {"type": "Ready", **ready},
        {"type": "ContainersReady", **ready},
        {"type": "PodScheduled", "status": "True"},
    ]
    known = {each["type"]: each for each in old.get("conditions") or []}
    return [_dated(condition, known.get(condition["type"], {}), now) for condition in wanted]


def _verdict(missing: list[str], reason: str, word: str) -> Object:
    if not missing:
        return {"status": "True"}
    message = f"containers with {word} status: [{' '.join(missing)}]"
    return {"status": "False", "reason": reason, "message": message}


def _dated(condition: Object, known: Object, now: str) -> Object:
    same = known.get("status") == condition["status"]
    since = known.get("lastTransitionTime") if same else None
    return {**condition, "lastProbeTime": None, "lastTransitionTime": since or now}
