"""A pod's status from the states of its containers, as the kubelet writes it.

Source: kubernetes `pkg/kubelet/kubelet_pods.go` (getPhase), `pkg/kubelet/status/generate.go` and
`pkg/kubelet/status/status_manager.go` (normalizeStatus).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from kfp_pytorch.local import loopback
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.controllers.kubernetes.status import ENDED_PHASES, condition, dated

# The longest that the termination messages of all of a pod's containers are together.
_MESSAGES_LIMIT = 12 * 1024


@dataclass
class ContainerState:
    """The state of one container."""

    name: str  # its name
    image: str  # its image
    state: Object = field(default_factory=dict)  # `waiting`, `running` or `terminated`
    last_state: Object = field(default_factory=dict)  # how the process before it was `terminated`
    restarts: int = 0  # how often it was restarted
    ready: bool = False  # whether its readiness probe, if it has one, has succeeded
    started: bool = False  # whether its startup probe, if it has one, has succeeded
    sidecar: bool = False  # whether it is an init container that runs as long as its pod
    container_id: str = ""  # names the process in the status

    @property
    def ended(self) -> Object:
        """The details of its end; empty while it has not ended."""
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
    def is_restarting(self) -> bool:
        """Whether it waits for a restart."""
        return "waiting" in self.state and bool(self.last_state)


def phase(
    initial: list[ContainerState],
    main: list[ContainerState],
    restart_policy: str,
    *,
    ended: bool = False,
) -> str:
    """The pod's phase. `ended`: whether no container of it is restarted any more."""
    sidecars = [each for each in initial if each.sidecar]
    failed = any(each.ended.get("exitCode") for each in main)
    if ended:
        return "Failed" if failed or not all(each.ended for each in main) else "Succeeded"
    for container in initial:
        if container.ended.get("exitCode") and restart_policy == "Never" and not container.sidecar:
            return "Failed"
        if not (container.ended or container.initialized):
            return "Pending"
    if any("waiting" in each.state and not each.is_restarting for each in main):
        return "Pending"
    active = any(each.running or each.is_restarting for each in (*main, *sidecars))
    if active or restart_policy == "Always" or (failed and restart_policy == "OnFailure"):
        return "Running"
    return "Failed" if failed else "Succeeded"


def pod_status(
    pod: Object,
    initial: list[ContainerState],
    main: list[ContainerState],
    now: datetime,
    *,
    ended: bool = False,
    evicted: Object | None = None,
) -> Object:
    """The whole status of a pod that is bound to this machine.

    `ended`: whether the kubelet is done with the pod. Until then its phase is not terminal, even
    where all containers have terminated. `evicted`: why the kubelet ends the pod, if it does.
    """
    spec, old = pod["spec"], pod.get("status") or {}
    next_phase = phase(initial, main, spec.get("restartPolicy", "Always"), ended=ended)
    if ended and evicted:
        old, next_phase = {**old, **evicted}, "Failed"
    generation = objects.metadata(pod).get("generation", 1)
    conditions = _conditions(pod, initial, main, next_phase, now)
    if next_phase in ENDED_PHASES and not ended:
        next_phase = old.get("phase", "Pending")
        conditions[0] = {**conditions[0], "status": "True"}
    status = {
        **{key: old[key] for key in ("qosClass", "reason", "message") if key in old},
        "observedGeneration": generation,
        "phase": next_phase,
        "conditions": [{**each, "observedGeneration": generation} for each in conditions],
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
    """Cut each container's termination message to its share of the limit."""
    share = _MESSAGES_LIMIT // max(containers, 1)
    for container in (*status.get("initContainerStatuses", ()), *status["containerStatuses"]):
        for state in ("state", "lastState"):
            ended = container[state].get("terminated")
            if ended and "message" in ended:
                head = ended["message"].encode()[:share]
                ended["message"] = head.decode(errors="ignore")


def _conditions(
    pod: Object,
    initial: list[ContainerState],
    main: list[ContainerState],
    new_phase: str,
    now: datetime,
) -> list[Object]:
    uninitialized = [each.name for each in initial if not each.initialized]
    sidecars = [each for each in initial if each.sidecar]
    unready = [each.name for each in (*sidecars, *main) if not each.ready]
    finished = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(new_phase, "")
    initialized = _all_or(uninitialized, "ContainersNotInitialized", "incomplete")
    if finished and not uninitialized:
        initialized["reason"] = "PodCompleted"
    ready = _all_or(unready, "ContainersNotReady", "unready")
    if finished:
        ready = {"status": "False", "reason": finished}
    wanted = [
        {"type": "PodReadyToStartContainers", "status": "False" if finished else "True"},
        {"type": "Initialized", **initialized},
        {"type": "Ready", **ready},
        {"type": "ContainersReady", **ready},
        {"type": "PodScheduled", "status": "True"},
    ]
    return [
        dated({**each, "lastProbeTime": None}, condition(pod, each["type"]), now) for each in wanted
    ]


def _all_or(missing: list[str], reason: str, word: str) -> Object:
    if not missing:
        return {"status": "True"}
    message = f"containers with {word} status: [{' '.join(missing)}]"
    return {"status": "False", "reason": reason, "message": message}
