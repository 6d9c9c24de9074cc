"""The objects of a cluster on which a run would work."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import yaml
from harness.api_server import ThreadedServer, kubeconfig, write_kubeconfig

from kfp_pytorch.launcher.constants import (
    CLAIM,
    CONFIG_MAP,
    DEPLOYMENT,
    MODEL_FORMAT,
    NODE,
    SERVICE_ACCOUNT,
    SERVING_RUNTIME,
    STORAGE_CLASS,
    Kind,
)
from kfp_pytorch.launcher.reference import KEY, Reference
from kfp_pytorch.local.apiserver.registry import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    NAMESPACE,
    ROLE_BINDING,
)

Object = dict[str, Any]

ACCOUNT = "pipeline-runner"
LAUNCHER = Reference("9", hashlib.sha256(b"hi").hexdigest())
GPU_NODE = "gpu-0"
CONTROLLERS = {
    "training-operator": "kubeflow",
    "kserve-controller-manager": "kserve",
    "kubeflow-trainer-controller-manager": "kubeflow-system",
    "jobset-controller-manager": "kubeflow-system",
    "katib-controller": "kubeflow",
    "katib-db-manager": "kubeflow",
    "tensorboard-controller-deployment": "kubeflow",
}
MANIFESTS = Path(__file__).parents[3] / "manifests"
# How Kueue 0.19 ships its configuration.
KUEUE_CONFIG = """\
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
integrations:
  frameworks:
  - "batch/job"
  - "jobset.x-k8s.io/jobset"
  - "trainer.kubeflow.org/trainjob"
#  - "kubeflow.org/pytorchjob"
  - "pod"
#  externalFrameworks:
#  - "Foo.v1.example.com"
"""


def make(server: ThreadedServer, kind: Kind, obj: Object, status: Object | None = None) -> None:
    """Creates an object, and its namespace."""
    namespace = obj["metadata"].get("namespace")
    if namespace and server.call(server.api.find, NAMESPACE, "", namespace) is None:
        server.call(server.api.create, NAMESPACE, {"metadata": {"name": namespace}})
    made = server.call(server.api.create, kind, obj)
    if status:
        server.call(server.api.update, kind, {**made, "status": status}, "status")


def change(
    server: ThreadedServer, kind: Kind, name: str, namespace: str = "", **parts: Any
) -> None:
    """Replaces parts of an object, such as its spec."""

    def changed(fresh: Object) -> None:
        fresh.update(parts)

    subresource = "status" if "status" in parts else ""
    server.call(server.api.mutate, kind, namespace, name, changed, subresource)


def drop(server: ThreadedServer, kind: Kind, name: str, namespace: str = "") -> None:
    """Deletes an object."""
    server.call(server.api.delete, kind, namespace, name)


def named(name: str, namespace: str = "default") -> Object:
    """The metadata of an object."""
    return {"name": name, **({"namespace": namespace} if namespace else {})}


def deployment(server: ThreadedServer, name: str, namespace: str) -> None:
    """Creates a Deployment with a ready pod."""
    template = {
        "metadata": {"labels": {"a": name}},
        "spec": {"containers": [{"name": "m", "image": "m"}]},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": {"a": name}}, "template": template}
    obj = {"metadata": named(name, namespace), "spec": spec}
    make(server, DEPLOYMENT, obj, {"replicas": 1, "readyReplicas": 1})


def node(server: ThreadedServer, name: str, gpus: int, taints: list[Object] | None = None) -> None:
    """Creates a node with accelerators."""
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "kubernetes.io/hostname": name}
    metadata = {"name": name, "labels": labels}
    allocatable = {"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    ready = [{"type": "Ready", "status": "True"}]
    obj = {"metadata": metadata, "spec": {"taints": taints} if taints else {}}
    make(server, NODE, obj, {"allocatable": allocatable, "conditions": ready})


def documents(name: str) -> list[Object]:
    """The objects in a file of `manifests`."""
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


def grant(server: ThreadedServer) -> None:
    """Applies the manifest of the steps' permissions, with a binding for the steps' account."""
    (role,) = (part for part in documents("rbac.yaml") if part["kind"] == "ClusterRole")
    make(server, CLUSTER_ROLE, role)
    bind(server, ROLE_BINDING, role["metadata"]["name"])


def bind(server: ThreadedServer, kind: Kind, role: str) -> None:
    """Gives the steps' account a ClusterRole."""
    reference = {"apiGroup": CLUSTER_ROLE.group, "kind": "ClusterRole", "name": role}
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "default"}
    metadata = named(role, "" if kind == CLUSTER_ROLE_BINDING else "default")
    make(server, kind, {"metadata": metadata, "roleRef": reference, "subjects": [subject]})


def launcher(server: ThreadedServer, content: bytes = b"hi") -> None:
    """Creates the ConfigMap that steps read."""
    data = {KEY: base64.b64encode(content).decode()}
    labels = {"app.kubernetes.io/name": "kfp-pytorch-launcher"}
    metadata = {**named(LAUNCHER.name), "labels": labels}
    make(server, CONFIG_MAP, {"metadata": metadata, "binaryData": data})


def claim(server: ThreadedServer, mode: str = "ReadWriteMany", phase: str = "Bound") -> None:
    """Creates the claim of the default `output_uri`."""
    spec = {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}}
    status = {"phase": phase, "accessModes": [mode]} if phase == "Bound" else {"phase": phase}
    make(server, CLAIM, {"metadata": named("kfp-pytorch"), "spec": spec}, status)


def storage_class(server: ThreadedServer, name: str, provisioner: str, *, default: bool) -> None:
    """Creates a storage class."""
    marks = {"storageclass.kubernetes.io/is-default-class": str(default).lower()}
    metadata = {"name": name, "annotations": marks}
    make(server, STORAGE_CLASS, {"metadata": metadata, "provisioner": provisioner})


def runtime(server: ThreadedServer) -> None:
    """Creates this project's serving runtime."""
    formats = [{"name": MODEL_FORMAT, "autoSelect": True}]
    spec = {
        "supportedModelFormats": formats,
        "containers": [{"name": "kserve-container", "image": "m"}],
    }
    make(server, SERVING_RUNTIME, {"metadata": named("kfp-pytorch"), "spec": spec})


def fill(server: ThreadedServer) -> None:
    """Creates all of them."""
    for name, namespace in CONTROLLERS.items():
        deployment(server, name, namespace)
    for account in ("default", ACCOUNT):
        make(server, SERVICE_ACCOUNT, {"metadata": named(account)})
    node(server, GPU_NODE, 8)
    grant(server)
    launcher(server)
    claim(server)
    storage_class(server, "shared", "nfs.csi.k8s.io", default=True)
    runtime(server)


def step_kubeconfig(server: ThreadedServer, folder: Path) -> Path:
    """A kubeconfig with the token of the steps' account, as a JWT that names it."""
    claims = json.dumps({"sub": f"system:serviceaccount:default:{ACCOUNT}"}).encode()
    token = f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.e30"
    return write_kubeconfig(folder / "step", kubeconfig(server.url, token))
