"""What is told of a revision that does not come to serve: what serves instead, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kfp_pytorch.launcher import podview
from kfp_pytorch.launcher.api_errors import ApiError
from kfp_pytorch.launcher.constants import EVENT
from kfp_pytorch.launcher.errors import StepError
from kfp_pytorch.launcher.evidence import Object
from kfp_pytorch.launcher.inference_service import HASH, ServiceInputs, doubtful_claim
from kfp_pytorch.launcher.kube import Kube
from kfp_pytorch.launcher.pods import container_status
from kfp_pytorch.launcher.podview import dig
from kfp_pytorch.launcher.rollout import mode_of, model_failure

CRASHES = 2
TAIL_LINES = 20
MOST_EVENTS = 5
# Events that say again what the containers' states say.
NOISE = ("BackOff", "Unhealthy")


@dataclass(frozen=True)
class Seen:
    """What was last seen of a rollout.

    Attributes:
        service: The InferenceService.
        workload: What runs it, its Deployment or its newest Revision; None where there is none.
        pods: The new revision's pods.
        unread: Why the pods could not be read; empty where they could.
    """

    service: Object
    workload: Object | None
    pods: list[Object]
    unread: str


def explain(kube: Kube, inputs: ServiceInputs, seen: Seen) -> Iterator[str]:
    """Tell what serves now, and all that may say why the new revision does not.

    Args:
        kube: The cluster, for logs and events; what cannot be read is said to be so.
        inputs: What was asked for.
        seen: What was last seen.

    Yields:
        The parts of the explanation.
    """
    yield _serves_now(seen, inputs.spec_hash)
    for condition in podview.each(seen.service, "status", "conditions"):
        if condition.get("status") != "True" and condition.get("severity") != "Info":
            words = f"{condition.get('reason') or ''} {condition.get('message') or ''}".strip()
            yield f"Condition {condition.get('type')} is {condition.get('status')}: {words}"
    failure = model_failure(seen.service)
    if failure:
        yield f"KServe says of the model: {failure}"
    try:
        for pod in seen.pods:
            yield from _pod_evidence(kube, pod)
    except StepError as error:
        yield f"(More could not be read: {error.short})"
    if seen.unread:
        yield f"({seen.unread})"
    doubt = doubtful_claim(inputs, kube.namespace)
    if doubt:
        yield doubt


def _serves_now(seen: Seen, spec_hash: str) -> str:
    """What serves now: a person must know whether users notice."""
    if mode_of(seen.service) == "Knative":
        serves = bool(dig(seen.service, "status", "components", "predictor", "latestReadyRevision"))
    else:
        status = dig(seen.workload, "status") or {}
        fresh = dig(seen.workload, "spec", "template", "metadata", "annotations", HASH)
        new = int(status.get("updatedReplicas") or 0) if fresh == spec_hash else 0
        serves = int(status.get("availableReplicas") or 0) > 0 and (
            int(status.get("replicas") or 0) > new
        )
    if serves:
        return "The previous revision still serves. The service was left as it is."
    return "Nothing serves. The service was left as it is."


def _pod_evidence(kube: Kube, pod: Object) -> Iterator[str]:
    name = podview.name(pod)
    scheduled = podview.condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        yield f"Pod {name} is not scheduled: {scheduled.get('message')}"
    for container, reason, words in podview.waiting(pod):
        yield f"Pod {name}: container {container} waits: {reason} {words}".rstrip()
    for container, end in {end.container: end for end in podview.failed_ends([pod])}.items():
        yield f"Container {container} of pod {name} ended with {_log_tail(kube, pod, end)}"
    for event in _warnings(kube, name):
        yield f"Event of pod {name}: {event.get('reason')}: {event.get('message')}"


def _log_tail(kube: Kube, pod: Object, end: podview.Ended) -> str:
    running = bool(dig(container_status(pod, end.container), "state", "running"))
    try:
        tail = kube.read_log(end.pod, end.container, previous=running, tail_lines=TAIL_LINES)
    except ApiError as error:
        tail = end.message or f"(it could not be read: {error.short})"
    return f"{podview.exit_words(end.exit_code)}. The end of its log:\n{tail.rstrip()}"


def _warnings(kube: Kube, pod: str) -> list[Object]:
    events = kube.list(EVENT, fields=f"involvedObject.name={pod}")
    return [e for e in events if e.get("type") == "Warning" and e.get("reason") not in NOISE][
        -MOST_EVENTS:
    ]


def crash_loop(status: Object) -> str:
    """How a container ended that has crashed more than once, or an empty string."""
    now = dig(status, "state", "terminated") or {}
    end = now or dig(status, "lastState", "terminated") or {}
    crashes = int(status.get("restartCount") or 0) + bool(now.get("exitCode"))
    looping = dig(status, "state", "waiting", "reason") == "CrashLoopBackOff"
    if not end.get("exitCode") or (crashes < CRASHES and not looping):
        return ""
    words = [line for line in str(end.get("message") or "").splitlines() if line.strip()]
    tail = f": {words[-1]}" if words else ""
    return f"keeps crashing, {podview.exit_words(int(end['exitCode']))}{tail}"
