"""The objects that an operator and a kubelet write, for those who play them: tests, benchmarks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from kfp_pytorch.launcher.constants import PYTORCHJOB

Object = dict[str, Any]

STARTED = "2025-11-27T12:00:00Z"
FINISHED = "2025-11-27T12:01:00Z"
IMAGE = "train:1"


def now() -> str:
    """This moment, as the API server writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(text: str, when: str = STARTED) -> Object:
    """A job's condition of a text such as `Running`, `Running=False` or `Failed: it broke`."""
    words, _, message = text.partition(":")
    kind, _, value = words.partition("=")
    return {
        "type": kind,
        "status": value or "True",
        "reason": f"PyTorchJob{kind}",
        "message": message.strip(),
        "lastTransitionTime": when,
    }


def pod(job: Object, role: str, index: int, spec: Object) -> Object:
    """A pod that the operator makes for a job."""
    metadata = job["metadata"]
    owner = {
        "apiVersion": PYTORCHJOB.api_version,
        "kind": PYTORCHJOB.kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    labels = {
        "training.kubeflow.org/job-name": metadata["name"],
        "training.kubeflow.org/replica-type": role,
        "training.kubeflow.org/replica-index": str(index),
    }
    about = {
        "name": f"{metadata['name']}-{role}-{index}",
        "namespace": metadata["namespace"],
        "labels": labels,
        "ownerReferences": [owner],
    }
    return {"metadata": about, "spec": spec}


def small_spec() -> Object:
    """The spec of a pod whose content does not matter."""
    return {"nodeName": "node-1", "containers": [{"name": "pytorch", "image": IMAGE}]}


def container(name: str = "pytorch", restarts: int = 0, **state: Any) -> Object:
    """The status of a container, such as `container(running={})`."""
    last = state.pop("lastState", None)
    found: Object = {
        "name": name,
        "image": IMAGE,
        "imageID": "",
        "ready": "running" in state,
        "restartCount": restarts,
        "state": state,
    }
    return found | ({"lastState": last} if last else {})


def end(
    code: int, text: str = "", reason: str = "", started: str = STARTED, finished: str = FINISHED
) -> Object:
    """How a container ended, with its termination message."""
    return {
        "exitCode": code,
        "reason": reason or ("Error" if code else "Completed"),
        "message": text,
        "startedAt": started,
        "finishedAt": finished,
    }
