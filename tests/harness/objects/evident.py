"""Evidence of a job that failed, for those who read what is made of it."""

from __future__ import annotations

from typing import Any

from kfp_pytorch.launcher.diagnosis.message import Diagnosis, diagnose
from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.waiting.evidence import Evidence

CAUSE = "PyTorchJob team/j failed (PyTorchJobFailed): 1 Worker replica(s) failed."


def job(nodes: int = 2, nproc: str = "1", **extra: Any) -> dict[str, Any]:
    replicas = {"Master": {"replicas": 1}, "Worker": {"replicas": nodes - 1}}
    spec = {"nprocPerNode": nproc, "pytorchReplicaSpecs": replicas, **extra.pop("spec", {})}
    created = {"type": "Created", "status": "True"}
    status = extra.pop("status", {"conditions": [created]})
    return {"metadata": {"name": "j", "namespace": "team"}, "spec": spec, "status": status}


def end(
    code: int, reason: str = "Error", message: str = "", at: str = "2025-11-27T12:00:00Z"
) -> dict[str, Any]:
    ended = {"exitCode": code, "reason": reason, "message": message, "finishedAt": at}
    return {"terminated": ended}


def container(name: str = "pytorch", restarts: int = 0, **parts: Any) -> dict[str, Any]:
    return {"name": name, "restartCount": restarts, **parts}


def pod(
    node: int,
    *statuses: dict[str, Any],
    init: tuple[dict[str, Any], ...] = (),
    memory: str = "",
    on: str = "gpu-1",
    **status: Any,
) -> dict[str, Any]:
    role, index = ("worker", node - 1) if node else ("master", 0)
    resources = {"limits": {"memory": memory}} if memory else {}
    spec: dict[str, Any] = {
        "containers": [{"name": "pytorch", "image": "train:1", "resources": resources}],
        "initContainers": [{"name": "init-pytorch", "image": "alpine:3.10"}],
    }
    if on:
        spec["nodeName"] = on
    return {
        "metadata": {
            "name": f"j-{role}-{index}",
            "labels": {
                "training.kubeflow.org/replica-type": role,
                "training.kubeflow.org/replica-index": str(index),
            },
        },
        "spec": spec,
        "status": {
            "phase": "Running",
            "containerStatuses": list(statuses),
            "initContainerStatuses": list(init),
            **status,
        },
    }


def event(about: str, reason: str, message: str) -> dict[str, Any]:
    return {
        "type": "Warning",
        "reason": reason,
        "message": message,
        "involvedObject": {"name": about},
    }


def of(
    *pods: dict[str, Any], logs: dict[str, str] | None = None, events: Any = (), **more: Any
) -> Diagnosis:
    evidence = Evidence(
        PYTORCH_JOB,
        job=more.pop("job", job(max(2, len(pods)))),
        pods={p["metadata"]["name"]: p for p in pods},
        logs=logs or {},
        events=list(events),
        **more,
    )
    return diagnose(evidence, CAUSE)


def first_line(diagnosis: Diagnosis) -> str:
    return diagnosis.message.splitlines()[0]
