"""Admission of pods: fills in the service account, checks accounts, classes and quotas.

Source: kubernetes v1.32 `plugin/pkg/admission/{serviceaccount,priority,runtimeclass}`,
`staging/src/k8s.io/apiserver/pkg/admission/plugin/resourcequota` and
`pkg/quota/v1/evaluator/core/pods.go`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from kfp_pytorch.launcher.constants import POD
from kfp_pytorch.local.apiserver import objects, registry
from kfp_pytorch.local.apiserver.errors import Object, forbidden
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.controllers.kubernetes.node import total
from kfp_pytorch.local.controllers.kubernetes.status import ENDED_PHASES, phase
from kfp_pytorch.local.quantities import quantity

# Every namespace has this account, and every cluster these classes.
_ACCOUNT = "default"
_TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105
_NAMESPACE_FIELD = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
_TOKEN_SOURCES = [
    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": _NAMESPACE_FIELD}]}},
]
_CLASSES = ("system-cluster-critical", "system-node-critical")
# Resources with a name of their own in a quota, which each container must then state.
_STATED = ("cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory")


def install(api: Api) -> None:
    """Fill in and check every new pod of a cluster."""
    api.add_mutating_webhook(POD, _fill_in)
    api.add_webhook(POD, partial(_check, api))


def _fill_in(pod: Object) -> None:
    spec = pod["spec"]
    name = spec.setdefault("serviceAccountName", _ACCOUNT)
    spec["serviceAccount"] = name
    if spec.get("automountServiceAccountToken") is False:
        return
    volume = objects.generated_name("kube-api-access-")
    source = {"defaultMode": 0o644, "sources": objects.copy(_TOKEN_SOURCES)}
    spec["volumes"] = [*(spec.get("volumes") or []), {"name": volume, "projected": source}]
    for container in _containers(pod):
        mounts = container.get("volumeMounts") or []
        if all(mount["mountPath"] != _TOKEN_PATH for mount in mounts):
            mount = {"name": volume, "readOnly": True, "mountPath": _TOKEN_PATH}
            container["volumeMounts"] = [*mounts, mount]


def _check(api: Api, pod: Object) -> None:
    if objects.metadata(pod).get("resourceVersion"):
        return  # it is an update
    for why in (_no_account(api, pod), _no_class(api, pod), _over_quota(api, pod)):
        if why:
            # A real server generates the name after admission.
            shown = objects.metadata(pod).get("generateName") or objects.name(pod)
            raise forbidden(POD, shown, why)


def _no_account(api: Api, pod: Object) -> str:
    namespace, name = objects.namespace(pod), pod["spec"].get("serviceAccountName") or _ACCOUNT
    if name == _ACCOUNT or api.find(registry.SERVICE_ACCOUNT, namespace, name):
        return ""
    return f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'


def _no_class(api: Api, pod: Object) -> str:
    name = pod["spec"].get("priorityClassName") or _CLASSES[0]
    if name not in _CLASSES and not api.find(registry.PRIORITY_CLASS, "", name):
        return f"no PriorityClass with name {name} was found"
    runtime = pod["spec"].get("runtimeClassName")
    if runtime and not api.find(registry.RUNTIME_CLASS, "", runtime):
        return f'pod rejected: RuntimeClass "{runtime}" not found'
    return ""


def _over_quota(api: Api, pod: Object) -> str:
    namespace = objects.namespace(pod)
    for quota in api.snapshot(registry.RESOURCE_QUOTA, namespace):
        hard = (quota.get("spec") or {}).get("hard") or {}
        unstated = list(_unstated(pod, hard))
        if unstated:
            return f"failed quota: {objects.name(quota)}: must specify {'; '.join(unstated)}"
        asked, in_use = _usage(pod), used(api, namespace)
        over = sorted(
            name
            for name, limit in hard.items()
            if name in asked and asked[name] + in_use.get(name, 0.0) > quantity(limit)
        )
        if over:
            requested, taken = (
                ",".join(f"{name}={written(amounts.get(name, 0.0))}" for name in over)
                for amounts in (asked, in_use)
            )
            limited = ",".join(f"{name}={hard[name]}" for name in over)
            return (
                f"exceeded quota: {objects.name(quota)}, requested: {requested}, used: {taken}, "
                f"limited: {limited}"
            )
    return ""


def _unstated(pod: Object, hard: Mapping[str, Any]) -> Iterator[str]:
    """The resources that a quota limits and some containers do not state, with these' names."""
    for name in sorted(set(hard) & set(_STATED)):
        group, _, resource = name.rpartition(".")
        names = [
            container["name"]
            for container in _containers(pod)
            if resource not in ((container.get("resources") or {}).get(group or "requests") or {})
        ]
        if names:
            yield f"{name} for: {','.join(names)}"


def _containers(pod: Object) -> list[Object]:
    return [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]


def used(api: Api, namespace: str) -> dict[str, float]:
    """What the pods of a namespace use of a quota, by every name that a quota may have for it."""
    found: dict[str, float] = {}
    for pod in api.snapshot(POD, namespace):
        if phase(pod) not in ENDED_PHASES:
            for name, amount in _usage(pod).items():
                found[name] = found.get(name, 0.0) + amount
    return found


def _usage(pod: Object) -> dict[str, float]:
    """What a pod uses of a quota, by every name that a quota may have for it."""
    usage = {"pods": 1.0, "count/pods": 1.0}
    for group in ("requests", "limits"):
        for resource, amount in total(pod, group).items():
            usage[f"{group}.{resource}"] = amount
            if group == "requests" and resource in _STATED:
                usage[resource] = amount
    return usage


def written(amount: float) -> str:
    """An amount as a quantity: in whole units, in a binary unit that fits, or in thousandths."""
    if not amount.is_integer():
        return f"{round(amount * 1000)}m"
    whole, unit = int(amount), ""
    for larger in ("Ki", "Mi", "Gi", "Ti"):
        if whole < 1024 or whole % 1024:
            break
        whole, unit = whole // 1024, larger
    return f"{whole}{unit}"
