"""Training runtimes: the shipped one, and what of a runtime the pods are made of.

Source: kubeflow/trainer v2.3.0, `manifests/base/runtimes` and `pkg/runtime`.
"""

from __future__ import annotations

from typing import Any

from kfp_pytorch.launcher.constants import (
    CLUSTER_TRAINING_RUNTIME,
    NODE_CONTAINER,
    TRAINING_IMAGE,
    TRAINING_RUNTIME,
)
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.apiserver.store.patches import strategic_merged

KINDS = {kind.kind: kind for kind in (CLUSTER_TRAINING_RUNTIME, TRAINING_RUNTIME)}
TORCH_DISTRIBUTED: Object = {
    "metadata": {
        "name": "torch-distributed",
        "labels": {"trainer.kubeflow.org/framework": "torch"},
    },
    "spec": {
        "mlPolicy": {"numNodes": 1, "torch": {}},
        "template": {
            "spec": {
                "replicatedJobs": [
                    {
                        "name": NODE_CONTAINER,
                        "template": {
                            "metadata": {
                                "labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
                            },
                            "spec": {
                                "template": {
                                    "spec": {
                                        "containers": [
                                            {"name": NODE_CONTAINER, "image": TRAINING_IMAGE}
                                        ]
                                    }
                                }
                            },
                        },
                    }
                ]
            }
        },
    },
}


def find(api: Api, job: Object) -> Object | None:
    """The runtime that a defaulted TrainJob names, or None."""
    reference = job["spec"]["runtimeRef"]
    kind = KINDS.get(reference["kind"])
    if kind is None:
        return None
    namespace = objects.namespace(job) if kind is TRAINING_RUNTIME else ""
    return api.find(kind, namespace, reference["name"])


def job_names(runtime: Object) -> list[str]:
    """The names of the jobs that a runtime has."""
    return [str(each.get("name")) for each in _jobset(runtime).get("replicatedJobs") or []]


def unsupported(runtime: Object) -> str:
    """What of a runtime cannot be run on this machine; empty where all can."""
    jobs = job_names(runtime)
    policy = runtime["spec"].get("mlPolicy") or {}
    other = sorted(set(policy) - {"numNodes", "torch"})
    if jobs != [NODE_CONTAINER]:
        return f"has the jobs {', '.join(jobs) or 'none'}"
    if other:
        return f"has the policy {other[0]}"
    return "has a failurePolicy" if _jobset(runtime).get("failurePolicy") else ""


def job_template(runtime: Object, job: Object) -> Object:
    """The template of the Job of a runtime's nodes, with a TrainJob's patches."""
    template = _jobset(runtime)["replicatedJobs"][0]["template"]
    for patch in job["spec"].get("runtimePatches") or []:
        path: tuple[Any, ...] = ("trainingRuntimeSpec", "template", "spec", "replicatedJobs")
        found: Any = patch
        for step in path:
            found = (found or {}).get(step)
        for each in found or []:
            if each["name"] == NODE_CONTAINER:
                template = strategic_merged(template, each.get("template") or {})
    merged: Object = objects.copy(template)
    return merged


def _jobset(runtime: Object) -> Object:
    found: Object = runtime["spec"]["template"].get("spec") or {}
    return found
