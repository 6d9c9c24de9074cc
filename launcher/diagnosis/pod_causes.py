"""Causes that the pods' objects and events show. Each is a pure function of the facts."""

from __future__ import annotations

import re

from kfp_pytorch.launcher import patterns
from kfp_pytorch.launcher.diagnosis.facts import Cause, Facts
from kfp_pytorch.launcher.diagnosis.program_errors import KILLED_BY
from kfp_pytorch.launcher.diagnosis.start_causes import START_ERRORS
from kfp_pytorch.launcher.jobs.termination_messages import is_ours
from kfp_pytorch.launcher.kubernetes import objects, pod_status
from kfp_pytorch.launcher.kubernetes.events import event_message, event_object
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.kubernetes.pod_status import ContainerEnd
from kfp_pytorch.launcher.text import counted, cut, settled, some

_NOT_THE_PROGRAM = (
    "The cluster did this, not the program. Retry the step (set_retry): training continues from "
    "its last checkpoint, if it wrote one."
)
_NAME_ADVICE = (
    "It waits until the first node's name resolves: see why that pod does not start, and that the "
    "cluster's DNS answers."
)
_NO_NAME = (
    "It waits until the name of the first node's pod resolves, and that pod runs: the cluster's "
    "DNS does not answer there, or a network policy keeps pods away from it."
)
_INIT_LOG_ADVICE = (
    "What it prepares is not ready: its last log lines, or its message, say why. It comes "
    "from pod_template_patch, or from what injects containers into pods here."
)
# Characters of a program's last line that are shown where nothing else explains its end.
_LAST_LINE = 200
# What tqdm and its like write, and what training reports; it explains nothing.
_NO_CAUSE = re.compile(
    r"\d%\||\b(?:it/s|s/it)\b|^\s*step=\d+(?: [^\s=]+=\S+)*\s*$|^\s*kfp-pytorch: wrote "
)
_NO_VOLUME = ("FailedMount", "FailedAttachVolume", "ProvisioningFailed", "FailedMapVolume")
_DISRUPTIONS = re.compile(
    r"Evicted|Preempt|NodeLost|NodeShutdown|Shutdown|Terminated|UnexpectedAdmissionError|OutOf"
    r"|EvictionByEvictionAPI|DeletionByTaintManager|DeletionByPodGC|TerminationByKubelet"
    # What the kubelet rejects although the scheduler bound it to the node.
    r"|NodeAffinity|TaintToleration|TopologyAffinityError|VolumeAttachmentLimitExceeded"
)


def out_of_memory(facts: Facts) -> Cause | None:
    """A training container was killed at its memory limit."""
    killed = [end for end in _killed_for_memory(facts) if facts.kind.trains(end)]
    if not killed:
        return None
    names = list(dict.fromkeys(end.pod for end in killed))
    return Cause(
        f"{some(names)} {_memory_words(facts, killed[0])}",
        "Raise memory, or need less: a smaller batch, fewer loader workers. /dev/shm counts too.",
    )


def other_container_out_of_memory(facts: Facts) -> Cause | None:
    """Only a container that does not train was killed at its memory limit."""
    killed = _killed_for_memory(facts)
    if not killed or any(map(facts.kind.trains, killed)):
        return None
    first = killed[0]
    return Cause(
        f"container {first.container!r} of {first.pod} {_memory_words(facts, first)}",
        "It is not the one that trains: raise its limit where it comes from, "
        "pod_template_patch or what injects it.",
    )


def _killed_for_memory(facts: Facts) -> list[ContainerEnd]:
    return [end for end in facts.failed_ends if end.reason == "OOMKilled"]


def _memory_words(facts: Facts, end: ContainerEnd) -> str:
    pod = next((pod for pod in facts.all_pods if objects.name(pod) == end.pod), {})
    limit = objects.dig(pod_status.container(pod, end.container), "resources", "limits", "memory")
    at = f"its limit of {limit}" if limit else "the node's limit: it has no memory limit of its own"
    return f"ran out of memory: OOMKilled, {pod_status.describe_exit_code(end.exit_code)}, at {at}"


def disrupted(facts: Facts) -> Cause | None:
    """The cluster took a pod off its node, or lost the node."""
    for pod in facts.all_pods:
        status = pod.get("status") or {}
        target = objects.condition(pod, "DisruptionTarget")
        reason = str(objects.dig(status, "reason") or "")
        words = str(objects.dig(status, "message") or "")
        if target.get("status") == "True" and not _DISRUPTIONS.match(reason):
            reason, words = str(target.get("reason") or ""), str(target.get("message") or "")
        if _DISRUPTIONS.match(reason):
            prevention = patterns.advice("disruption", f"{reason} {words}")
            return Cause(
                f"{objects.name(pod)} was taken off {_node(pod)} ({reason}): "
                f"{words or 'no words with it'}",
                f"{_NOT_THE_PROGRAM} {prevention}".rstrip(),
            )
    lost = next(filter(pod_status.node_lost, facts.all_pods), None)
    return _lost(objects.name(lost), f"{_node(lost)} is not ready any more") if lost else None


def container_lost(facts: Facts) -> Cause | None:
    """The kubelet no longer knows the container that failed first."""
    end = _first_failed(facts)
    if end is None or end.reason != "ContainerStatusUnknown":
        return None
    return _lost(end.pod, end.message or end.reason)


def _lost(pod: str, words: str) -> Cause:
    return Cause(f"{pod} was lost with its node: {words}", _NOT_THE_PROGRAM)


def _node(pod: Object) -> str:
    return str(objects.dig(pod, "spec", "nodeName") or "its node")


def volume_or_sandbox(facts: Facts) -> Cause | None:
    """The node cannot mount a pod's volume, or cannot start pods at all."""
    running = {
        objects.name(pod)
        for pod in facts.pods
        if objects.dig(pod, "status", "phase") in ("Running", "Succeeded")
    }
    for event in reversed(facts.evidence.events):
        about, reason = event_object(event), str(event.get("reason"))
        if about in running:
            continue
        words = event_message(event)
        if reason in _NO_VOLUME:
            return Cause(
                f"A volume of {about} is not there ({reason}): {words}",
                "The claim can be attached to one node only: give it access mode ReadWriteMany, "
                "or train on one node."
                if "Multi-Attach" in words
                else "Check that the claim, Secret or ConfigMap exists and its storage works.",
            )
        if reason == "FailedCreatePodSandBox":
            return Cause(
                f"The node of {about} cannot start pods ({reason}): {words}",
                "An administrator checks that node, mostly its network plugin. To avoid it "
                "until then, use node_selector or affinity.",
            )
    return None


def init_container_waits(facts: Facts) -> Cause | None:
    """Init containers have not ended."""
    stuck = []
    for pod in facts.pods:
        for status in pod_status.statuses(pod, init=True):
            name = str(status.get("name"))
            up = pod_status.is_sidecar(pod, name) and status.get("started") is not False
            if objects.dig(status, "state", "running") is not None and not up:
                stuck.append((objects.name(pod), name))
    if not stuck:
        return None
    names = some(pod for pod, _ in stuck)
    return Cause(
        f"{names} still {'wait' if len(stuck) > 1 else 'waits'} in the init container "
        f"{stuck[0][1]!r}",
        _init_advice(facts, stuck[0][1]),
    )


def init_container_fails(facts: Facts) -> Cause | None:
    """An init container fails again and again, and its pod is not being deleted."""
    for pod in facts.pods:
        if pod_status.is_terminating(pod):
            continue
        for status in pod_status.statuses(pod, init=True):
            state, name = status.get("state"), str(status.get("name"))
            stopped = pod_status.is_sidecar(pod, name) and objects.dig(state, "terminated")
            done = stopped or objects.dig(state, "terminated", "exitCode") == 0
            ends = [end for end in pod_status.failed_ends([pod]) if end.container == name]
            if done or objects.dig(state, "running") is not None or not ends:
                continue
            if ends[-1].reason not in START_ERRORS:
                return Cause(
                    f"{objects.name(pod)}: the init container {name!r} fails with "
                    f"{pod_status.describe_exit_code(ends[-1].exit_code)}",
                    _init_advice(facts, name),
                )
    return None


def _init_advice(facts: Facts, container: str) -> str:
    added, evidence = facts.kind.init_container, facts.evidence
    if not added or container != added.name:
        return _INIT_LOG_ADVICE
    first = evidence.pods.get(facts.kind.first_pod(evidence.job, facts.pods), {})
    runs = objects.dig(first, "status", "phase") == "Running"
    return _NO_NAME if runs else _NAME_ADVICE


def killed(facts: Facts) -> Cause | None:
    """A signal that no lost peer explains ended the container that failed first."""
    end = _first_failed(facts)
    return _ended(facts, end) if end and end.exit_code in KILLED_BY else None


def exit_code(facts: Facts) -> Cause | None:
    """The exit code of the container that failed first."""
    end = _first_failed(facts)
    return _ended(facts, end) if end and end.exit_code not in KILLED_BY else None


def _first_failed(facts: Facts) -> ContainerEnd | None:
    # What an earlier pod of the same name ended with, as at a suspension, is past.
    current = filter(facts.kind.trains, pod_status.failed_ends(facts.pods))
    own = list(current) or [end for end in facts.failed_ends if facts.kind.trains(end)]
    together = [end for end in own if end.finished_at == own[0].finished_at]
    # Of those that ended in one second, a rank that was killed is why others lost their peer.
    killed_one = next((end for end in together if end.exit_code in KILLED_BY), None)
    return killed_one or next(iter(own), None)


def _ended(facts: Facts, end: ContainerEnd) -> Cause | None:
    if end.reason == "ContainerStatusUnknown":
        return None
    own = {other.pod for other in facts.failed_ends if facts.kind.trains(other)}
    others = len(own - {end.pod})
    restarts = sum(map(pod_status.restarts, facts.pods))
    again = f", after {counted(restarts, 'restart')} over all pods" if restarts else ""
    also = f"; {counted(others, 'more pod')} failed too" if others else ""
    return Cause(
        f"{end.pod} ended with {pod_status.describe_exit_code(end.exit_code)}{again}{also}",
        patterns.advice("exit_code", str(end.exit_code)) or _last_log_line(facts, end),
    )


def _last_log_line(facts: Facts, end: ContainerEnd) -> str:
    """What to do about an end that only the program's own log explains."""
    logs = facts.evidence.logs
    # A message of ours is no log, and is not shown as one.
    log = logs.get(end.pod, "").strip() or ("" if is_ours(end.message) else end.message.strip())
    if not log and not any(other.strip() for other in logs.values()):
        return f"It left no log that could be read. {facts.kind.keep_pods_advice}"
    lines = [line.strip() for line in settled(log).split("\n") if not _NO_CAUSE.search(line)]
    last = next(filter(None, reversed(lines)), "")
    if "ChildFailedError" in log or last.startswith("{") or not any(map(str.isalpha, last)):
        return "Its last log lines are below: correct what they show."
    shown = cut(last, _LAST_LINE).rstrip(".")
    return f"Correct what its log ends with: {shown}. More of it is below."


def sidecar_keeps_running(facts: Facts) -> Cause | None:
    """Training has ended, but another container keeps its pod running."""
    main = facts.kind.container
    words = next(
        filter(None, (pod_status.reason_still_running(pod, main) for pod in facts.pods)), ""
    )
    if not words:
        return None
    return Cause(
        words,
        "Keep that container out of training pods: a mesh's proxy with istio_injection "
        "off, another one by the annotation of what injects it.",
    )


def pod_deadline(facts: Facts) -> Cause | None:
    """A pod reached its own activeDeadlineSeconds."""
    for pod in facts.pods:
        if objects.dig(pod, "status", "reason") == "DeadlineExceeded":
            return Cause(
                f"{objects.name(pod)} ran for longer than its activeDeadlineSeconds",
                "Raise it where it comes from: pod_template_patch, or a policy of the cluster.",
            )
    return None
