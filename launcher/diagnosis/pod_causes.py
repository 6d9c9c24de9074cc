"""What pods, conditions and events say of why a job failed. A finder yields findings, or none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kfp_pytorch.launcher.constants import INIT_CONTAINER
from kfp_pytorch.launcher.jobs.termination_messages import is_ours
from kfp_pytorch.launcher.kubernetes import objects, pending, pod_status
from kfp_pytorch.launcher.kubernetes.events import event_object, event_words
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.kubernetes.pod_status import Ended
from kfp_pytorch.launcher.text import counted, some
from kfp_pytorch.launcher.waiting.evidence import Evidence

# How likely a finding is the cause rather than a consequence. A container killed for memory or a
# node that went away makes every other rank fail with words about lost connections.
OOM = 95
DISRUPTED = 90
CANNOT_START = 85
EXCEPTION = 80
UNSCHEDULABLE = 75
VOLUME = 73
NO_PODS = 72
DEADLINE = 66
KILLED = 67
COLLECTIVE = 65
EXIT_CODE = 60
OOM_BESIDE = 59
STUCK_INIT = 58
SIDECAR = 55
QUEUED = 45
SILENT_OPERATOR = 40


# Else the job, its pods and their logs are gone once the step has failed.
KEEP_THE_PODS = (
    "To look at the pods yourself, start the step again with cleanup 'never' and clean_pod_policy "
    "'Keep'."
)


@dataclass(frozen=True)
class Finding:
    """Something that may be why a job failed.

    Attributes:
        weight: How likely it is the cause; the highest wins.
        headline: What it is, as one sentence without its full stop.
        advice: What to do about it, as sentences.
    """

    weight: int
    headline: str
    advice: str


_NAME_ADVICE = (
    "It waits until the first node's name resolves: see why that pod does not start, and that the "
    "cluster's DNS answers."
)
_NO_NAME = (
    "It waits until the name of the first node's pod resolves, and that pod runs: the cluster's "
    "DNS does not answer there, or a network policy keeps pods away from it."
)
_INIT_LOG_ADVICE = (
    "What it prepares does not come about: its last log lines, or its message, say why. It comes "
    "from pod_template_patch, or from whoever injects containers into pods here."
)
# SIGBUS, SIGKILL and SIGSEGV: nobody ends like this who only lost its peers.
KILLED_BY = (135, 137, 139)
# Characters of a program's last line that are shown where nothing else explains its end.
_LAST_LINE = 200
EXIT_HINTS = {
    137: "Something outside killed it: its node ran out of memory, or somebody deleted the pod. "
    "Set memory to what training needs; a retry goes on from the last checkpoint.",
    143: "It was told to stop: its pod was deleted or preempted, or its node drained. A retry of "
    "the step goes on from the last checkpoint.",
    139: "It crashed in native code: check that torch, CUDA and extensions fit together.",
    135: "A bus error often is a full /dev/shm: set shm_size.",
    134: "It gave itself up, as NCCL does after a time-out and native code on a failed check: its "
    "last lines say why.",
    127: "Check command: the image does not have that program.",
    126: "Check command: that file may not be executed.",
}
_NO_VOLUME = ("FailedMount", "FailedAttachVolume", "ProvisioningFailed", "FailedMapVolume")
START_ERRORS = ("StartError", "ContainerCannotRun")
_DISRUPTIONS = re.compile(
    r"Evicted|Preempt|NodeLost|NodeShutdown|Shutdown|Terminated|UnexpectedAdmissionError|OutOf"
    r"|EvictionByEvictionAPI|DeletionByTaintManager|DeletionByPodGC|TerminationByKubelet"
    # What the kubelet turns away that the scheduler had sent.
    r"|NodeAffinity|TaintToleration|TopologyAffinityError|VolumeAttachmentLimitExceeded"
)


def find(evidence: Evidence) -> Iterator[Finding]:
    """Yield what the objects of the cluster say, in no order."""
    pods = [*pod_status.in_order(evidence.pods.values()), *evidence.past_pods]
    ends = pod_status.failed_ends(pods)
    yield from _killed_for_memory(pods, ends)
    yield from _disrupted(pods)
    yield from _volumes(evidence)
    yield from _stuck_init(evidence)
    yield from _failing_init(evidence)
    yield from _exit_codes(evidence, ends)
    yield from _sidecars(evidence)
    yield from _job(evidence)


def _killed_for_memory(pods: list[Object], ends: list[Ended]) -> Iterator[Finding]:
    killed = [end for end in ends if end.reason == "OOMKilled"]
    if not killed:
        return
    first = next(filter(pod_status.trains, killed), killed[0])
    pod = next((pod for pod in pods if objects.name(pod) == first.pod), {})
    container = pod_status.container(pod, first.container)
    limit = objects.dig(container, "resources", "limits", "memory")
    at = f"its limit of {limit}" if limit else "the node's limit: it has no memory limit of its own"
    words = f"ran out of memory: OOMKilled, {pod_status.exit_words(first.exit_code)}, at {at}"
    if not pod_status.trains(first):
        yield Finding(
            OOM_BESIDE,
            f"container {first.container!r} of {first.pod} {words}",
            "It is not the one that trains: raise its limit where it comes from, "
            "pod_template_patch or whoever injects it.",
        )
        return
    names = list(dict.fromkeys(end.pod for end in killed if pod_status.trains(end)))
    yield Finding(
        OOM,
        f"{some(names)} {words}",
        "Raise memory, or need less: a smaller batch, fewer loader workers. /dev/shm counts too.",
    )


def _disrupted(pods: list[Object]) -> Iterator[Finding]:
    for pod in pods:
        status = pod.get("status") or {}
        target = objects.condition(pod, "DisruptionTarget")
        reason = str(objects.dig(status, "reason") or "")
        words = str(objects.dig(status, "message") or "")
        if target.get("status") == "True" and not _DISRUPTIONS.match(reason):
            reason, words = str(target.get("reason") or ""), str(target.get("message") or "")
        if not _DISRUPTIONS.match(reason):
            continue
        node = objects.dig(pod, "spec", "nodeName") or "its node"
        yield Finding(
            DISRUPTED,
            f"{objects.name(pod)} was taken off {node} ({reason}): {words or 'no words with it'}",
            f"The cluster did this, not the program. Retry the step (set_retry): training goes on "
            f"from its last checkpoint.{_against(f'{reason} {words}')}",
        )
        return
    lost = next(filter(pod_status.node_lost, pods), None)
    if lost:
        node = objects.dig(lost, "spec", "nodeName") or "its node"
        yield _lost(objects.name(lost), f"{node} is not ready any more")


def _lost(pod: str, words: str) -> Finding:
    return Finding(
        DISRUPTED,
        f"{pod} was lost with its node: {words}",
        "The cluster did this, not the program. Retry the step (set_retry): training goes on "
        "from its last checkpoint.",
    )


def _against(words: str) -> str:
    """Say what keeps a pod from being taken off a node again, where something does."""
    if "Preempt" in words:
        return " If it recurs, give it a priority class through pod_template_patch."
    if "Evicted" in words or "low on resource" in words:
        return " If it recurs, set memory to what it needs, and mind what it writes to local disk."
    return ""


def _volumes(evidence: Evidence) -> Iterator[Finding]:
    running = {
        objects.name(pod)
        for pod in evidence.pods.values()
        if objects.dig(pod, "status", "phase") in ("Running", "Succeeded")
    }
    for event in reversed(evidence.events):
        about, reason = event_object(event), str(event.get("reason"))
        if about in running:
            continue
        words = event_words(event)
        if reason in _NO_VOLUME:
            yield Finding(
                VOLUME,
                f"A volume of {about} is not there ({reason}): {words}",
                "The claim can be attached to one node only: give it access mode ReadWriteMany, "
                "or train on one node."
                if "Multi-Attach" in words
                else "Check that the claim, Secret or ConfigMap exists and its storage works.",
            )
            return
        if reason == "FailedCreatePodSandBox":
            yield Finding(
                VOLUME,
                f"The node of {about} cannot start pods ({reason}): {words}",
                "An administrator looks at that node, mostly at its network plugin. To keep off "
                "it meanwhile, use node_selector or affinity.",
            )
            return


def _stuck_init(evidence: Evidence) -> Iterator[Finding]:
    stuck = []
    for pod in pod_status.in_order(evidence.pods.values()):
        for status in pod_status.statuses(pod, init=True):
            name = str(status.get("name"))
            up = pod_status.is_sidecar(pod, name) and status.get("started") is not False
            if objects.dig(status, "state", "running") is not None and not up:
                stuck.append((objects.name(pod), name))
    if stuck:
        names = some(pod for pod, _ in stuck)
        yield Finding(
            STUCK_INIT,
            f"{names} still {'wait' if len(stuck) > 1 else 'waits'} in the init container "
            f"{stuck[0][1]!r}",
            _init_advice(evidence, stuck[0][1]),
        )


def _failing_init(evidence: Evidence) -> Iterator[Finding]:
    for pod in pod_status.in_order(evidence.pods.values()):
        for status in pod_status.statuses(pod, init=True):
            state, name = status.get("state"), str(status.get("name"))
            stopped = pod_status.is_sidecar(pod, name) and objects.dig(state, "terminated")
            done = stopped or objects.dig(state, "terminated", "exitCode") == 0
            ends = [end for end in pod_status.failed_ends([pod]) if end.container == name]
            if done or objects.dig(state, "running") is not None or not ends:
                continue
            if ends[-1].reason not in START_ERRORS:
                yield Finding(
                    STUCK_INIT,
                    f"{objects.name(pod)}: the init container {name!r} fails with "
                    f"{pod_status.exit_words(ends[-1].exit_code)}",
                    _init_advice(evidence, name),
                )
                return


def _init_advice(evidence: Evidence, container: str) -> str:
    if container != INIT_CONTAINER:
        return _INIT_LOG_ADVICE
    first = pod_status.in_order(evidence.pods.values())[0]
    runs = objects.dig(first, "status", "phase") == "Running"
    return _NO_NAME if runs and pod_status.replica(first) == ("master", 0) else _NAME_ADVICE


def _exit_codes(evidence: Evidence, ends: list[Ended]) -> Iterator[Finding]:
    own = [end for end in ends if pod_status.trains(end)]
    if not own:
        return
    together = [end for end in own if end.finished_at == own[0].finished_at]
    # Of those that ended in one second, a rank that was killed is why others lost their peer.
    first = next((end for end in together if end.exit_code in KILLED_BY), own[0])
    if first.reason == "ContainerStatusUnknown":
        yield _lost(first.pod, first.message or first.reason)
        return
    others = len({end.pod for end in own} - {first.pod})
    restarts = sum(map(pod_status.restarts, evidence.pods.values()))
    again = f", after {counted(restarts, 'restart')} over all pods" if restarts else ""
    also = f"; {counted(others, 'more pod')} failed too" if others else ""
    yield Finding(
        KILLED if first.exit_code in KILLED_BY else EXIT_CODE,
        f"{first.pod} ended with {pod_status.exit_words(first.exit_code)}{again}{also}",
        EXIT_HINTS.get(first.exit_code) or _last_words(evidence, first),
    )


def _last_words(evidence: Evidence, end: Ended) -> str:
    """What to do about an end that only the program's own log explains."""
    # A message of ours is no log, and is not shown as one.
    said = "" if is_ours(end.message) else end.message.strip()
    log = evidence.logs.get(end.pod, "").strip() or said
    if not log and not any(other.strip() for other in evidence.logs.values()):
        return f"It left no log that could be read. {KEEP_THE_PODS}"
    last = log.rpartition("\n")[2].strip()
    if "ChildFailedError" in log or last.startswith("{") or not any(map(str.isalpha, last)):
        return "Its last log lines are below: correct what they show."
    shown = last if len(last) <= _LAST_LINE else f"{last[: _LAST_LINE - 1]}…"
    return f"Correct what its log ends with: {shown.rstrip('.')}. More of it is below."


def _sidecars(evidence: Evidence) -> Iterator[Finding]:
    for pod in pod_status.in_order(evidence.pods.values()):
        words = pod_status.lingering(pod)
        if words:
            yield Finding(
                SIDECAR,
                words,
                "Keep that container out of training pods: a mesh's proxy with istio_injection "
                "off, another one by the annotation of whoever injects it.",
            )
            return


def _job(evidence: Evidence) -> Iterator[Finding]:
    for pod in pod_status.in_order(evidence.pods.values()):
        if objects.dig(pod, "status", "reason") == "DeadlineExceeded":
            yield Finding(
                DEADLINE,
                f"{objects.name(pod)} ran for longer than its activeDeadlineSeconds",
                "Raise it where it comes from: pod_template_patch, or a policy of the cluster.",
            )
            break
    failed = objects.condition(evidence.job, "Failed")
    words = str(failed.get("message") or "")
    if failed.get("status") == "True" and "deadline" in words.lower():
        yield Finding(
            DEADLINE,
            f"The operator ended the job at its deadline: {words}",
            "Raise active_deadline, or make training shorter.",
        )
    conditions = objects.each(evidence.job, "status", "conditions")
    suspended = objects.dig(evidence.job, "spec", "runPolicy", "suspend") is True
    if suspended and failed.get("status") != "True":
        said = pending.words((), evidence.events)
        yield Finding(
            QUEUED,
            "The job is suspended: it still waits in its queue" + (f" ({said})" if said else ""),
            pending.QUEUE_ADVICE,
        )
    elif evidence.job and not conditions and not evidence.pods:
        yield Finding(
            SILENT_OPERATOR,
            "The Training Operator has not acknowledged the job: it has no condition and no pod",
            "Check that the operator runs (kubectl get pods -A -l "
            "app.kubernetes.io/name=training-operator) and watches this namespace.",
        )
