"""What a cluster with Kubeflow has beside its node: accounts, a storage class, Deployments."""

from __future__ import annotations

from kfp_pytorch.launcher.constants import DEPLOYMENT, Kind
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.registry import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    NAMESPACE,
    SERVICE_ACCOUNT,
    STORAGE_CLASS,
)
from kfp_pytorch.local.apiserver.store.api import DELETED, Api
from kfp_pytorch.local.controllers.kubernetes.deployment import IN_PROCESS

# The account that KFP runs steps as.
STEPS_ACCOUNT = "pipeline-runner"
_ADMINISTRATOR = "cluster-admin"
_EVERYTHING = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
# The controllers that this process runs, under the names that their projects give them.
_CONTROLLERS = {
    "training-operator": "kubeflow",
    "kubeflow-trainer-controller-manager": "kubeflow-system",
    "jobset-controller-manager": "kubeflow-system",
    "kserve-controller-manager": "kserve",
}


def fill(api: Api) -> None:
    """Create them. Every account may do everything, as requests are not authorized here."""
    account = {"metadata": {"name": STEPS_ACCOUNT, "namespace": "default"}}
    api.create(SERVICE_ACCOUNT, account)
    role = {"metadata": {"name": _ADMINISTRATOR}, "rules": [_EVERYTHING]}
    api.create(CLUSTER_ROLE, role)
    reference = {"apiGroup": CLUSTER_ROLE.group, "kind": CLUSTER_ROLE.kind, "name": _ADMINISTRATOR}
    group = {"apiGroup": CLUSTER_ROLE.group, "kind": "Group", "name": "system:serviceaccounts"}
    binding = {"metadata": {"name": "local-accounts"}, "roleRef": reference, "subjects": [group]}
    api.create(CLUSTER_ROLE_BINDING, binding)
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"}
    metadata = {"name": "folders", "annotations": annotations}
    api.create(STORAGE_CLASS, {"metadata": metadata, "provisioner": "kfp-pytorch/folders"})
    for name, namespace in _CONTROLLERS.items():
        _ensure(api, NAMESPACE, {"metadata": {"name": namespace}})
        made = api.create(DEPLOYMENT, _deployment(name, namespace))
        made["status"] = {
            **dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas"), 1),
            "availableReplicas": 1,
            "observedGeneration": made["metadata"]["generation"],
        }
        api.update(DEPLOYMENT, made, "status")


def _deployment(name: str, namespace: str) -> Object:
    labels = {"app.kubernetes.io/name": name}
    metadata = {"name": name, "namespace": namespace, "annotations": {IN_PROCESS: "true"}}
    container = {"name": "manager", "image": "kfp-pytorch-local"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": metadata, "spec": spec}


def _ensure(api: Api, kind: Kind, obj: Object) -> None:
    if (
        api.find(kind, objects.namespace(obj) if kind != NAMESPACE else "", objects.name(obj))
        is None
    ):
        api.create(kind, obj)


async def give_accounts(api: Api) -> None:
    """Give each namespace its account `default`, until cancelled."""
    async for change, namespace in api.watch(NAMESPACE):
        if change != DELETED and not objects.is_terminating(namespace):
            metadata = {"name": "default", "namespace": objects.name(namespace)}
            _ensure(api, SERVICE_ACCOUNT, {"metadata": metadata})
