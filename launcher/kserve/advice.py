"""What to do about a new revision that does not serve. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kfp_pytorch.launcher import patterns
from kfp_pytorch.launcher.kserve.evidence import Snapshot
from kfp_pytorch.launcher.kserve.names import INITIALIZER
from kfp_pytorch.launcher.kserve.rollout import Rollout, stopped
from kfp_pytorch.launcher.kubernetes import admission, objects, pod_status
from kfp_pytorch.launcher.kubernetes.objects import Object, dig
from kfp_pytorch.launcher.kubernetes.pod_status import container_statuses

_LONGER = "If it only takes longer, raise timeout."
_NO_NODE = (
    "Ask for less cpu, memory or gpus, or compare node_selector and tolerations with the cluster's "
    "nodes; where the cluster is only full for a while, raise timeout."
)


def what_to_do(state: Rollout, seen: Snapshot, reason: str = "") -> str:
    """Return what a person can do about it."""
    if stopped(seen.service):
        return "Let it run again, if whoever stopped it agrees, and start the step again."
    refused = objects.condition(seen.workload or {}, "ReplicaFailure")
    if refused.get("status") == "True":
        return _of_refusal(str(refused.get("message")))
    if state.refusal:
        return (
            "Correct what it names. Where no runtime serves the model's format, name one as "
            "runtime (kubectl get servingruntimes,clusterservingruntimes), or add this project's: "
            "manifests/serving-runtime.yaml."
        )
    advice = next((text for pod in seen.pods for text in _of_pod(pod)), "")
    if advice := advice or patterns.advice("predictor_volume", reason):
        return advice
    if seen.workload is None:
        return patterns.advice("predictor_mode", reason) or (
            "KServe has made nothing of it: check that its controller runs (kubectl get pods -A -l "
            "control-plane=kserve-controller-manager), and see its log."
        )
    if not seen.pods and not seen.unread:
        kind, name = seen.workload.get("kind") or "deployment", objects.name(seen.workload)
        return f"`kubectl describe {kind} {name}` may say why it has no pods. {_LONGER}"
    return f"See the conditions below for what is missing. {_LONGER}"


def _of_refusal(words: str) -> str:
    """What to do about pods that the cluster refuses; the step has no template of its own."""
    known = patterns.advice("predictor_refusal", words)
    return known or admission.advice(words).replace("pod_template_patch", "the ServingRuntime")


def _of_pod(pod: Object) -> Iterator[str]:
    if dig(pod, "status", "phase") == "Failed" and dig(pod, "status", "reason"):
        yield (
            "The cluster took the pod away: start the step again; where its node ran short, set "
            "memory to what the model needs."
        )
    scheduled = objects.condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        claim = re.search(r"persistentvolumeclaim|volume", str(scheduled.get("message")))
        yield patterns.advice("predictor_volume", "FailedAttachVolume") if claim else _NO_NODE
    for _, reason, words in pod_status.waiting_containers(pod):
        if text := patterns.advice("predictor", f"{reason} {words}"):
            yield text
    for status in container_statuses(pod):
        yield from _of_container(pod, status)


def _of_container(pod: Object, status: Object) -> Iterator[str]:
    name, running = str(status.get("name")), dig(status, "state", "running") is not None
    ends = [end for end in pod_status.failed_ends([pod]) if end.container == name]
    if dig(status, "state", "terminated", "exitCode") == 0:
        return
    if name == INITIALIZER and running:
        yield "The model is still being fetched: raise timeout for one that large."
    elif any(end.reason == "OOMKilled" for end in ends):
        yield "Raise memory."
    elif name == INITIALIZER and ends:
        yield (
            "Check that the model is where its storage_uri says, and that the credentials of "
            "service_account or storage_key may read it there."
        )
    elif ends:
        yield "The end of its log is below: correct the model, its server or env."
    elif running and status.get("ready") is False:
        yield (
            "The end of its log is below. If it still loads the model, raise timeout; if it "
            "serves, the readiness probe of the runtime or container does not fit it."
        )
