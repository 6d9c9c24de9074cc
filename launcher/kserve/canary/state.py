"""Which revisions of an InferenceService get how much of the traffic. No I/O.

KServe's side: https://github.com/kserve/kserve/tree/v0.20.0/pkg/apis/serving/v1beta1
(`inference_service_status.go`).
"""

from __future__ import annotations

import copy

from kfp_pytorch.launcher.kserve.canary import spec
from kfp_pytorch.launcher.kserve.rollout import Rollout, deployment_waits_for, refused_pods, stopped
from kfp_pytorch.launcher.kubernetes.objects import Object, condition, dig, each

PREDICTOR = ("status", "components", "predictor")
PERCENT = ("spec", "predictor", "canaryTrafficPercent")


def has_served(service: Object) -> bool:
    """Whether a revision of the service is or has been ready: then it is the stable one.

    KServe gives a component a URL when it is ready for the first time.
    """
    status = dig(service, *PREDICTOR)
    is_ready = condition(service, "Ready").get("status") == "True"
    return is_ready or bool(dig(status, "latestRolledoutRevision") or dig(status, "url"))


def canary_rollout(service: Object, deployment: Object | None, spec_hash: str) -> Rollout:
    """Return whether the canary of Standard mode is ready.

    The service's own conditions and its modelStatus are the stable predictor's. `deployment`: the
    canary's; None where there is none yet.
    """
    found = each(service, "status", "canaryStatuses")
    status = next((entry for entry in found if entry.get("name") == spec.NAME), {})
    waits_for = "KServe to take up the canary, which it does since 0.20"
    if deployment is not None:
        wanted = int(dig(deployment, "spec", "replicas") or 1)
        waits_for = deployment_waits_for(deployment, spec_hash, wanted)
    if not waits_for and status.get("ready") is not True:
        waits_for = "KServe to find the canary ready"
    return Rollout(
        not waits_for, waits_for, stopped(service) or refused_pods(deployment, spec_hash)
    )


def is_split(service: Object) -> bool:
    """Whether the newest Knative Revision gets less than all of the traffic, as is asked for."""
    percent = dig(service, *PERCENT)
    return percent is not None and int(percent) < 100


def with_share(service: Object, percent: int | None) -> Object:
    """Return a service whose newest Knative Revision gets this share; None for all of it."""
    changed = copy.deepcopy(service)
    predictor = changed["spec"]["predictor"]
    if percent is None:
        predictor.pop("canaryTrafficPercent", None)
    else:
        predictor["canaryTrafficPercent"] = percent
    return changed


def stable_revision(service: Object) -> str:
    """Return the Knative Revision that serves beside the canary; empty where there is none."""
    names = (
        str(target.get("revisionName") or "")
        for target in each(service, *PREDICTOR, "traffic")
        if target.get("tag") == "prev"
    )
    created = dig(service, *PREDICTOR, "latestCreatedRevision")
    return next((name for name in names if name not in ("", created)), "")


def rollback_waits_for(service: Object) -> str:
    """Return what is still missing until the canary of Knative mode gets no traffic."""
    created = dig(service, *PREDICTOR, "latestCreatedRevision")
    share = sum(
        int(target.get("percent") or 0)
        for target in each(service, *PREDICTOR, "traffic")
        if target.get("revisionName") not in (None, "", created)
    )
    return "" if share == 100 else f"traffic to the revision before: {share} % in place of 100 %"


def removal_waits_for(service: Object, deployment: Object | None) -> str:
    """Return what is still missing until the canary of Standard mode is gone."""
    names = [status.get("name") for status in each(service, "status", "canaryStatuses")]
    if deployment is not None or spec.NAME in names:
        return "the canary to be gone"
    return ""
