"""Reads the state of a rollout from an InferenceService and its Deployment or Revision. No I/O.

KServe's side: https://github.com/kserve/kserve/tree/v0.20.0/pkg/apis/serving/v1beta1
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from kfp_pytorch.launcher.kserve.manifest import HASH
from kfp_pytorch.launcher.kserve.names import (
    AUTOSCALER_ANNOTATION,
    MODE_ANNOTATION,
    MODES,
    STOP_ANNOTATION,
)
from kfp_pytorch.launcher.kubernetes import admission
from kfp_pytorch.launcher.kubernetes.objects import Object, condition, dig, each

PREDICTOR = "predictor"


@dataclass(frozen=True)
class Rollout:
    """The state of the new revision.

    Attributes:
        refusal: What KServe or the cluster says makes this spec impossible; it may still be about
            the previous one.
        failed_load: What KServe says of the new model, which did not load; a restart may mend it.
    """

    done: bool  # whether the new revision serves
    waits_for: str = ""  # what is still missing, as text
    refusal: str = ""
    failed_load: str = ""


def mode_of(service: Object) -> str:
    """Return `Standard` or `Knative`, or an empty string while the cluster does not say."""
    written = dig(service, "status", "deploymentMode")
    written = written or dig(service, "metadata", "annotations", MODE_ANNOTATION) or ""
    return MODES.get(str(written)) or ("Knative" if created_revision(service) else "")


def created_revision(service: Object, component: str = PREDICTOR) -> str:
    """Return the name of a component's newest Knative Revision, or an empty string."""
    return str(dig(_component(service, component), "latestCreatedRevision") or "")


def rollout(
    service: Object,
    workload: Object | None,
    spec_hash: str,
    others: Mapping[str, Object | None] | None = None,
) -> Rollout:
    """Return whether the new revision serves.

    After an update the old revision's Ready stays True, `observedGeneration` is a child object's
    and `modelStatus` is Loaded whenever Ready is True. What counts is that our own hash has reached
    what runs, and that it runs whole.

    `workload`: its Deployment in Standard mode, or its newest Revision in Knative mode; None where
    there is none yet. `others`: the same of other components, such as a transformer, by name.
    """
    status = dig(service, "status", "modelStatus") or {}
    transition = str(status.get("transitionStatus") or "")
    refusal = _failure_words(status) if transition == "InvalidSpec" else ""
    failed = _failure_words(status) if transition == "BlockedByFailedLoad" else ""
    waits_for = _workload_waits_for(service, workload, spec_hash)
    for component, found in (others or {}).items():
        missing = _workload_waits_for(service, found, spec_hash, component)
        waits_for = waits_for or (missing and f"the {component}: {missing}")
    ready = condition(service, "Ready")
    if not waits_for and ready.get("status") != "True":
        words = f"{ready.get('reason') or ''} {ready.get('message') or ''}".strip()
        waits_for = f"the service to be Ready{f' ({words})' if words else ''}"
    if not waits_for and transition not in ("", "UpToDate") and not _idles(service, transition):
        waits_for = f"the model: {transition}"
    refused = (refused_pods(found, spec_hash) for found in (workload, *(others or {}).values()))
    refusal = stopped(service) or refusal or next(filter(None, refused), "")
    return Rollout(not waits_for, waits_for, refusal, failed)


def _idles(service: Object, transition: str) -> bool:
    """Whether a model may be InProgress only because it was scaled to zero.

    KServe takes no pods for a start (v0.20, inference_service_status.go, PropagateModelStatus).
    """
    return transition == "InProgress" and dig(service, "spec", "predictor", "minReplicas") == 0


def stopped(service: Object) -> str:
    """Return the sentence that a service has been stopped, or an empty string.

    `service`: the InferenceService; KServe runs nothing of it while it has the annotation.
    """
    if str(dig(service, "metadata", "annotations", STOP_ANNOTATION) or "").lower() != "true":
        return ""
    name = dig(service, "metadata", "name")
    return (
        f"it was stopped with the annotation {STOP_ANNOTATION}. `kubectl annotate "
        f"inferenceservice {name} {STOP_ANNOTATION}-` lets it run again"
    )


def _workload_waits_for(
    service: Object, workload: Object | None, spec_hash: str, component: str = PREDICTOR
) -> str:
    if workload is None:
        return "the controller to take up the new spec"
    if mode_of(service) == "Knative":
        return _revision_waits_for(service, workload, spec_hash, component)
    replicas = dig(workload, "spec", "replicas")
    wanted = max(1 if replicas is None else replicas, _autoscaler_minimum(service, component))
    if not wanted and dig(service, "spec", component, "minReplicas") != 0:
        scaled = "pods of the new revision: its Deployment is scaled to 0"
        return _not_taken_up(workload, spec_hash) or scaled
    return deployment_waits_for(workload, spec_hash, wanted)


def deployment_waits_for(deployment: Object, spec_hash: str, wanted: int) -> str:
    """Return what is missing until a Deployment runs so many pods of a revision and no others."""
    if missing := _not_taken_up(deployment, spec_hash):
        return missing
    status = deployment.get("status") or {}
    fields = ("updatedReplicas", "availableReplicas", "replicas")
    counts = {field: int(status.get(field) or 0) for field in fields}
    if set(counts.values()) != {wanted}:
        words = _deployment_words(deployment)
        return (
            f"pods of the new revision: {counts['updatedReplicas']} of {wanted} made, "
            f"{counts['availableReplicas']} available, {counts['replicas']} in all{words}"
        )
    return ""


def _not_taken_up(deployment: Object, spec_hash: str) -> str:
    template = ("spec", "template", "metadata", "annotations", HASH)
    if dig(deployment, *template) != spec_hash:
        return "the controller to take up the new spec"
    observed = int(dig(deployment, "status", "observedGeneration") or 0)
    if observed < int(dig(deployment, "metadata", "generation") or 0):
        return "the Deployment's controller"
    return ""


def _autoscaler_minimum(service: Object, component: str) -> int:
    """Return the replicas that KServe's autoscaler adds within 15 s; 0 without one.

    Of the predictor's it takes off those of the canaries, and leaves at least one.
    """
    if dig(service, "metadata", "annotations", AUTOSCALER_ANNOTATION) in ("external", "none"):
        return 0
    wanted = dig(service, "spec", component, "minReplicas")
    if not isinstance(wanted, int):
        return 0
    canaries = each(service, "spec", "canary") if component == PREDICTOR else []
    taken = sum(int(dig(entry, "predictor", "minReplicas") or 0) for entry in canaries)
    return max(wanted - taken, min(wanted, 1))


def _deployment_words(workload: Object) -> str:
    """What its controller says of pods that do not come, or an empty string."""
    refused, progress = condition(workload, "ReplicaFailure"), condition(workload, "Progressing")
    if refused.get("status") == "True":
        return f": {refused.get('message')}"
    return f": {progress.get('message')}" if progress.get("status") == "False" else ""


def refused_pods(workload: Object | None, spec_hash: str) -> str:
    """Return why a revision can have no pods, where no waiting mends that; or an empty string."""
    if dig(workload, "spec", "template", "metadata", "annotations", HASH) != spec_hash:
        return ""
    refused = condition(workload or {}, "ReplicaFailure")
    words = str(refused.get("message") or "")
    return words if refused.get("status") == "True" and admission.is_permanent(words) else ""


def _revision_waits_for(service: Object, revision: Object, spec_hash: str, component: str) -> str:
    if dig(revision, "metadata", "annotations", HASH) != spec_hash:
        return "the controller to take up the new spec"
    ready = dig(_component(service, component), "latestReadyRevision")
    created = created_revision(service, component)
    if created != ready:
        failed = condition(revision, "Ready")
        words = f": {failed.get('message')}" if failed.get("status") == "False" else ""
        return f"revision {created} to be ready (so far {ready or 'none'}){words}"
    canary = dig(service, "spec", component, "canaryTrafficPercent")
    wanted = 100 if canary is None else int(canary)
    targets = each(_component(service, component), "traffic")
    share = sum(int(target.get("percent") or 0) for target in targets if _leads_to(target, created))
    if targets and (
        share < wanted or (share > wanted and _follows_another(service, created, component))
    ):
        return f"traffic to revision {created}: {share} % in place of {wanted} %"
    return ""


def _follows_another(service: Object, created: str, component: str) -> bool:
    """Whether there is an older revision to take the rest: the first of all gets everything."""
    status = _component(service, component)
    older = {status.get("latestRolledoutRevision"), status.get("previousRolledoutRevision")}
    older |= {target.get("revisionName") for target in each(status, "traffic")}
    return bool(older - {created, "", None})


def _leads_to(target: Object, revision: str) -> bool:
    named = str(target.get("revisionName") or "")
    return named == revision if named else bool(target.get("latestRevision"))


def _component(service: Object, component: str) -> Object:
    return dig(service, "status", "components", component) or {}


def _failure_words(status: Object) -> str:
    info = status.get("lastFailureInfo") or {}
    said = ": ".join(filter(None, (info.get("reason"), info.get("message"))))
    return said.strip() or str(status.get("transitionStatus"))


def model_failure(service: Object) -> str:
    """Return what KServe says of a model that failed to load, or an empty string."""
    status = dig(service, "status", "modelStatus") or {}
    # The information about a failure stays after a later update that succeeded.
    if not status.get("lastFailureInfo") or status.get("transitionStatus") == "UpToDate":
        return ""
    return _failure_words(status)


def model_states(service: Object) -> str:
    """Return what KServe says of the model where it is not said to serve; or an empty string."""
    status = dig(service, "status", "modelStatus") or {}
    if status.get("transitionStatus") in (None, "", "UpToDate"):
        return ""
    states = {
        "the new model": dig(status, "states", "targetModelState"),
        "the serving one": dig(status, "states", "activeModelState"),
    }
    known = [f"{whose} {state}" for whose, state in states.items() if state]
    return ", ".join([str(status["transitionStatus"]), *known])


def base_url(service: Object, *, internal: bool) -> str:
    """Return the service's URL.

    `internal`: whether the URL for callers within the cluster is wanted. Returns the URL, or an
    empty string if the status has none that could be asked.
    """
    path = ("status", "address", "url") if internal else ("status", "url")
    said = str(dig(service, *path) or "")
    return said if re.match(r"https?://[^/]", said) else ""


def predict_url(base: str, path: str) -> str:
    """Return the exact URL that answers predictions.

    `base`: the service's URL; older KServe puts the path of a prediction into it, and a gateway
    that routes by path that of the service. `path`: where the server is asked, `Source.path`.
    """
    parts = urlsplit(base)
    prefix = re.sub(r"/v[12]/models/.*", "", parts.path).rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, prefix + path, "", ""))


def reachable_from_outside(url: str) -> bool:
    """Whether a URL may lead to the service from outside of the cluster.

    `url`: a URL of the service. Names of Kubernetes' Services are known to pods only, and
    example.com is KServe's domain where an administrator has set none.
    """
    host = urlsplit(url).hostname or ""
    return "." in host and not host.endswith((".svc", ".cluster.local", ".example.com"))


def port_forward_advice(service: str, namespace: str, path: str) -> str:
    """Say how a person reaches a predictor from outside of the cluster."""
    return (
        "It cannot be reached from outside of the cluster. From your own machine:\n"
        f"`kubectl port-forward -n {namespace} service/{service} 8080:80`\n"
        f"then http://localhost:8080{path}"
    )
