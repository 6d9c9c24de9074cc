"""The Revisions of an InferenceService in Knative mode. No I/O.

A Revision is a pod template that never changes, and what runs it a Deployment. Source: knative
serving v1.15, `pkg/apis/serving/v1/revision_lifecycle.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from kfp_pytorch.launcher.constants import DEPLOYMENT, INFERENCE_SERVICE, KNATIVE_REVISION
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.controllers.kubernetes.status import condition, dated

_GENERATION = "serving.knative.dev/configurationGeneration"
REVISION_LABEL = "serving.knative.dev/revision"
_MIN_SCALE = "autoscaling.knative.dev/min-scale"
_MAX_SCALE = "autoscaling.knative.dev/max-scale"

# The local cluster has these beside the definitions that it is given.
DEFINITION = {
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"{KNATIVE_REVISION.plural}.{KNATIVE_REVISION.group}"},
    "spec": {
        "group": KNATIVE_REVISION.group,
        "scope": "Namespaced",
        "names": {
            "kind": KNATIVE_REVISION.kind,
            "plural": KNATIVE_REVISION.plural,
            "shortNames": ["rev"],
        },
        "versions": [
            {
                "name": KNATIVE_REVISION.version,
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    {
                        "name": heading,
                        "type": "string",
                        "jsonPath": f".status.conditions[?(@.type=='Ready')].{field}",
                    }
                    for heading, field in (("Ready", "status"), ("Reason", "reason"))
                ],
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


def in_order(revisions: Sequence[Object]) -> list[Object]:
    """Revisions, the oldest first."""
    return sorted(revisions, key=_generation)


def next_revision(service: Object, deployment: Object, known: Sequence[Object]) -> Object | None:
    """The Revision to make of a service's Deployment, or None where the newest one is it."""
    template, least = deployment["spec"]["template"], service["spec"]["predictor"]
    scale = {_MIN_SCALE: least.get("minReplicas"), _MAX_SCALE: least.get("maxReplicas")}
    scale = {key: str(value) for key, value in scale.items() if value is not None}
    newest = in_order(known)[-1] if known else None
    generation = _generation(newest) + 1 if newest else 1
    name = f"{objects.name(deployment)}-{generation:05d}"
    labels = {key: value for key, value in template["metadata"]["labels"].items() if key != "app"}
    annotations = {**template["metadata"]["annotations"], **scale}
    if newest and _template(newest) == (labels, annotations, template["spec"]):
        return None
    metadata = {
        "name": name,
        "labels": {**labels, _GENERATION: str(generation)},
        "annotations": annotations,
    }
    return objects.controlled(
        KNATIVE_REVISION, metadata, objects.copy(template["spec"]), service, INFERENCE_SERVICE
    )


def deployment_name(revision: Object) -> str:
    """The name of the Deployment that runs a Revision."""
    return f"{objects.name(revision)}-deployment"


def deployment_of(revision: Object, service: Object, replicas: int) -> Object:
    """The Deployment that runs a Revision."""
    name = objects.name(revision)
    labels = {**objects.labels(revision), REVISION_LABEL: name, "app": name}
    metadata = {"labels": labels, "annotations": objects.metadata(revision).get("annotations", {})}
    spec = {
        "replicas": replicas,
        "selector": {"matchLabels": {REVISION_LABEL: name}},
        "template": {"metadata": objects.copy(metadata), "spec": objects.copy(revision["spec"])},
    }
    meta = {**metadata, "name": deployment_name(revision)}
    return objects.controlled(DEPLOYMENT, meta, spec, service, INFERENCE_SERVICE)


def is_ready(revision: Object) -> bool:
    """Whether a Revision was ready once; with no traffic it runs nothing and stays so."""
    return condition(revision, "Ready").get("status") == "True"


def status(revision: Object, deployment: Object, pods: Sequence[Object], now: datetime) -> Object:
    """A Revision's status, from what runs it."""
    ready = {"status": "Unknown", "reason": "Deploying"}
    progress = condition(deployment, "Progressing")
    refused = condition(deployment, "ReplicaFailure")
    exited = _exit(pods)
    if is_ready(revision) or progress.get("reason") == "NewReplicaSetAvailable":
        ready = {"status": "True"}
    elif refused:
        ready = _failed(refused["reason"], refused["message"])
    elif exited:
        words = f"Container failed with: {exited.get('message', '')}"
        ready = _failed(f"ExitCode{exited['exitCode']}", words)
    elif progress.get("status") == "False":
        ready = _failed(progress["reason"], progress["message"])
    found = dated({"type": "Ready", **ready}, condition(revision, "Ready"), now)
    return {"conditions": [found], "observedGeneration": 1}


def _failed(reason: str, message: str) -> Object:
    return {"status": "False", "reason": reason, "message": message}


def _exit(pods: Sequence[Object]) -> Object:
    """How a container of the newest pod ended that failed; empty where none did."""
    for each in (pods[0].get("status") or {}).get("containerStatuses") or [] if pods else []:
        for state in (each.get("state") or {}, each.get("lastState") or {}):
            ended: Object = state.get("terminated") or {}
            if ended.get("exitCode") and not each.get("ready"):
                return ended
    return {}


def _generation(revision: Object) -> int:
    return int(objects.labels(revision)[_GENERATION])


def _template(revision: Object) -> tuple[Object, Object, Object]:
    labels = {k: v for k, v in objects.labels(revision).items() if k != _GENERATION}
    return labels, objects.metadata(revision).get("annotations") or {}, revision["spec"]
