"""The defaults of pods, and the checks of their spec."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from typing import Any

from kfp_pytorch.local.apiserver.errors import Cause, Object
from kfp_pytorch.local.apiserver.validation import pod_fields
from kfp_pytorch.local.apiserver.validation.fields import (
    check_dns,
    duplicate,
    invalid_value,
    required,
    unsupported,
)

_GROUPS = ("initContainers", "containers")
_RESTART_POLICIES = ["Always", "Never", "OnFailure"]
_PULL_POLICIES = ["Always", "IfNotPresent", "Never"]
_QUANTITY = re.compile(
    r"[+-]?(\d+(\.\d*)?|\.\d+)(([KMGTPE]i)|[numkMGTPE]|([eE][+-]?\d+))?", re.ASCII
)
_QUANTITY_WORDS = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)
_EVICTION_GRACE_S = 300


def fill_spec(spec: Object) -> None:
    """Puts a pod spec's defaults into it, for a pod or the template of one."""
    for group in _GROUPS:
        for container in spec.get(group) or []:
            _fill_container(container)
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    for volume in spec.get("volumes") or []:
        _fill_volume(volume)


def fill_pod(pod: Object) -> None:
    """Puts a pod's defaults into it, with those of a real server's admission."""
    spec = pod.setdefault("spec", {})
    fill_spec(spec)
    tolerations = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(t.get("key") == key and t.get("effect") == "NoExecute" for t in tolerations):
            tolerations.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": _EVICTION_GRACE_S,
                }
            )
    spec.setdefault("priority", 0)
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    status = pod.setdefault("status", {"phase": "Pending"})
    status.setdefault("qosClass", _qos_class(spec))
    for condition in status.get("conditions") or []:
        condition.setdefault("lastProbeTime", None)
        condition.setdefault("lastTransitionTime", None)


def _fill_container(container: Object) -> None:
    image = str(container.get("image") or "")
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    latest = tag in ("", "latest") and "@" not in image
    container.setdefault("resources", {})
    resources = container["resources"]
    if resources.get("limits"):
        resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
    for port in container.get("ports") or []:
        port.setdefault("protocol", "TCP")
    for variable in container.get("env") or []:
        reference = (variable.get("valueFrom") or {}).get("fieldRef")
        if reference is not None:
            reference.setdefault("apiVersion", "v1")


def _fill_volume(volume: Object) -> None:
    if not any(key != "name" for key in volume):
        volume["emptyDir"] = {}
    for source in ("configMap", "secret", "projected", "downwardAPI"):
        if source in volume:
            volume[source].setdefault("defaultMode", 0o644)


def _qos_class(spec: Object) -> str:
    containers = [c for group in _GROUPS for c in spec.get(group) or []]
    resources = [container.get("resources") or {} for container in containers]
    if not any(item.get("limits") or item.get("requests") for item in resources):
        return "BestEffort"
    for item in resources:
        limits = item.get("limits") or {}
        if not {"cpu", "memory"} <= limits.keys() or item.get("requests", limits) != limits:
            return "Burstable"
    return "Guaranteed"


def check_spec(spec: Object, path: str) -> Iterator[Cause]:
    """What is wrong with a pod spec that has its defaults; `path` is its own in the object."""
    yield from _check_names(spec.get("volumes") or [], f"{path}.volumes")
    for index, volume in enumerate(spec.get("volumes") or []):
        yield from pod_fields.check_volume(volume, f"{path}.volumes[{index}]")
    volumes = {volume.get("name") for volume in spec.get("volumes") or []}
    if not spec.get("containers"):
        yield required(f"{path}.containers")
    yield from pod_fields.check_placement(spec, path)
    yield from pod_fields.check_security(
        spec.get("securityContext") or {}, f"{path}.securityContext"
    )
    taken: set[str] = set()
    for group in _GROUPS:
        containers = spec.get(group) or []
        yield from _check_names(containers, f"{path}.{group}", taken)
        taken |= {str(container.get("name")) for container in containers}
        for index, container in enumerate(containers):
            yield from _check_container(container, f"{path}.{group}[{index}]", volumes)
    if spec.get("restartPolicy") not in _RESTART_POLICIES:
        where = f"{path}.restartPolicy"
        yield unsupported(where, spec.get("restartPolicy"), _RESTART_POLICIES)


def _check_names(
    entries: list[Object], path: str, taken: Set[str] = frozenset()
) -> Iterator[Cause]:
    seen = set(taken)
    for index, entry in enumerate(entries):
        where = f"{path}[{index}].name"
        name = entry.get("name") or ""
        if not name:
            yield required(where)
        elif name in seen:
            yield duplicate(where, f'"{name}"')
        else:
            yield from check_dns(name, where)
        seen.add(name)


def _check_container(container: Object, path: str, volumes: set[Any]) -> Iterator[Cause]:
    image = container.get("image") or ""
    if not image:
        yield required(f"{path}.image")
    elif image != image.strip():
        yield invalid_value(f"{path}.image", image, "must not have leading or trailing whitespace")
    if container.get("imagePullPolicy") not in _PULL_POLICIES:
        where = f"{path}.imagePullPolicy"
        yield unsupported(where, container.get("imagePullPolicy"), _PULL_POLICIES)
    for index, variable in enumerate(container.get("env") or []):
        yield from _check_variable(variable, f"{path}.env[{index}]")
    mounted: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts") or []):
        where = f"{path}.volumeMounts[{index}]"
        yield from _check_mount(mount, where, volumes)
        place = mount.get("mountPath") or ""
        if place in mounted:
            why = "must be unique"
            yield invalid_value(f"{where}.mountPath", place, why)
        mounted.add(place)
    yield from _check_resources(container.get("resources") or {}, f"{path}.resources")
    context = container.get("securityContext") or {}
    yield from pod_fields.check_security(context, f"{path}.securityContext")


def _check_variable(variable: Object, path: str) -> Iterator[Cause]:
    name = variable.get("name") or ""
    if not name:
        yield required(f"{path}.name")
    elif not re.fullmatch(r"[ -<>-~]+", name):
        why = "a valid environment variable name must consist only of printable ASCII characters"
        yield invalid_value(f"{path}.name", name, f"{why} other than '='")
    if variable.get("value") and variable.get("valueFrom"):
        why = "may not be specified when `value` is not empty"
        yield invalid_value(f"{path}.valueFrom", "", why)
    elif variable.get("valueFrom") is not None:
        yield from pod_fields.check_source(variable["valueFrom"], f"{path}.valueFrom")


def _check_mount(mount: Object, path: str, volumes: set[Any]) -> Iterator[Cause]:
    name = mount.get("name") or ""
    if not name:
        yield required(f"{path}.name")
    elif name not in volumes:
        yield Cause("FieldValueNotFound", f"{path}.name", f'Not found: "{name}"')
    if not mount.get("mountPath"):
        yield required(f"{path}.mountPath")
    sub_path = str(mount.get("subPath") or "")
    if sub_path.startswith("/"):
        yield invalid_value(f"{path}.subPath", sub_path, "must be a relative path")
    if ".." in sub_path.split("/"):
        yield invalid_value(f"{path}.subPath", sub_path, "must not contain '..'")


def _check_resources(resources: Object, path: str) -> Iterator[Cause]:
    wrong = list(_check_quantities(resources, path))
    yield from wrong or pod_fields.check_amounts(resources, path)


def _check_quantities(resources: Object, path: str) -> Iterator[Cause]:
    for group in ("limits", "requests"):
        for name, value in (resources.get(group) or {}).items():
            if not _QUANTITY.fullmatch(str(value)):
                yield invalid_value(f"{path}.{group}[{name}]", value, _QUANTITY_WORDS)
            elif str(value).startswith("-"):
                why = "must be greater than or equal to 0"
                yield invalid_value(f"{path}.{group}[{name}]", value, why)
