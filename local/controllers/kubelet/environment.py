"""A container's variables and command, as its Pod object declares them.

Source: kubernetes `pkg/kubelet/kubelet_pods.go` (makeEnvironmentVariables) and
`third_party/forked/golang/expansion`.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kfp_pytorch.launcher.constants import CONFIG_MAP, Kind
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.registry import SECRET
from kfp_pytorch.local.quantities import quantity

Find = Callable[[Kind, str], Object | None]
"""Finds an object of the pod's namespace by its kind and name; None if there is none."""

_REFERENCE = re.compile(r"\$(\$|\(([^)]*)\))")
_KEYED_FIELD = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


class ConfigError(Exception):
    """A container refers to an object that does not exist (CreateContainerConfigError)."""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace each `$(NAME)` whose variable is known; `$$` is a `$` that starts no reference."""

    def replaced(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return variables.get(match[2], match[0])

    return _REFERENCE.sub(replaced, text)


def command(container: Object, variables: Mapping[str, str]) -> list[str]:
    """The command line of a container: `command` and `args` with their references replaced."""
    given = [*(container.get("command") or []), *(container.get("args") or [])]
    return [expand(word, variables) for word in given]


def variables(pod: Object, container: Object, find: Find) -> dict[str, str]:
    """The variables that a container declares, later ones over earlier ones, references replaced.

    Raises ConfigError: a ConfigMap, a Secret or a key in one is missing and not optional.
    """
    found: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        prefix = source.get("prefix") or ""
        for key, value in _all_of(source, find):
            found[prefix + key] = value
    for entry in container.get("env") or []:
        if entry.get("valueFrom"):
            referenced = _value_from(pod, container, entry["valueFrom"], find)
            if referenced is not None:
                found[entry["name"]] = referenced
        else:
            found[entry["name"]] = expand(entry.get("value") or "", found)
    return found


def _all_of(source: Object, find: Find) -> Iterator[tuple[str, str]]:
    for field, kind in (("configMapRef", CONFIG_MAP), ("secretRef", SECRET)):
        reference = source.get(field)
        if reference:
            yield from contents(_found(kind, reference, find)).items()


def _found(kind: Kind, reference: Object, find: Find) -> Object:
    name = reference.get("name", "")
    found = find(kind, name)
    if found is None and not reference.get("optional"):
        raise ConfigError(f'{kind.kind.lower()} "{name}" not found')
    return found or {}


def contents(holder: Object) -> dict[str, str]:
    """The texts of a ConfigMap or a Secret, by key."""
    return {key: data.decode(errors="replace") for key, data in files(holder).items()}


def files(holder: Object) -> dict[str, bytes]:
    """The bytes of a ConfigMap or a Secret, by key."""
    data = holder.get("data") or {}
    if holder.get("kind") == SECRET.kind:
        return {key: base64.b64decode(text) for key, text in data.items()}
    binary = holder.get("binaryData") or {}
    found = {key: text.encode() for key, text in data.items()}
    return found | {key: base64.b64decode(text) for key, text in binary.items()}


def _value_from(pod: Object, container: Object, source: Object, find: Find) -> str | None:
    for field, kind in (("secretKeyRef", SECRET), ("configMapKeyRef", CONFIG_MAP)):
        if field in source:
            return _key(pod, kind, source[field], find)
    if "fieldRef" in source:
        return _field(pod, source["fieldRef"]["fieldPath"])
    return _resource(pod, container, source.get("resourceFieldRef") or {})


def _key(pod: Object, kind: Kind, reference: Object, find: Find) -> str | None:
    values = contents(_found(kind, reference, find))
    key, name = reference["key"], reference.get("name", "")
    if key not in values and not reference.get("optional"):
        where = f"{kind.kind} {objects.namespace(pod)}/{name}"
        raise ConfigError(f"couldn't find key {key} in {where}")
    return values.get(key)


def _field(pod: Object, path: str) -> str:
    keyed = _KEYED_FIELD.fullmatch(path)
    if keyed:
        return str((objects.metadata(pod).get(keyed[1]) or {}).get(keyed[2], ""))
    value: Any = pod
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    if isinstance(value, dict):
        return "\n".join(f'{key}="{value[key]}"' for key in sorted(value))
    return "" if value is None else str(value)


def _resource(pod: Object, container: Object, reference: Object) -> str:
    name = reference.get("containerName") or container["name"]
    spec = pod["spec"]
    every = [*(spec.get("initContainers") or []), *spec["containers"]]
    resources = next((c.get("resources") or {} for c in every if c["name"] == name), {})
    group, _, resource = reference.get("resource", "").partition(".")
    amount = quantity((resources.get(group) or {}).get(resource, "0"))
    divisor = quantity(reference.get("divisor") or "1") or 1.0
    return str(math.ceil(amount / divisor))
