"""A strategic merge patch of a pod template: lists are merged by what names their elements.

https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/
Two lists that Kubernetes would replace, `tolerations` and `envFrom`, are added to here: a patch is
for what the inputs cannot say, not for saying it all again.
"""

from __future__ import annotations

import copy
from typing import Any

from kfp_pytorch.launcher.errors import InputError

_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
# The fields that identify an element with one key, and their defaults.
_BESIDES = {"ports": ("protocol", "TCP"), "topologySpreadConstraints": ("whenUnsatisfiable", "")}
_ADDED = ("tolerations", "envFrom")
_DIRECTIVE = "$patch"


def merge(base: dict[str, Any], patch: dict[str, Any], where: str) -> dict[str, Any]:
    """Return an object changed by a patch.

    `patch`: the changes. null removes a field; in a list that is merged by a key, an element with
    `"$patch": "delete"` removes the one it names, which one after it replaces. Raises InputError:
    if the patch has another type than what it changes, or an element of a list that is merged lacks
    its key.
    """
    result = copy.deepcopy(base)
    for key, value in patch.items():
        here = f"{where}.{key}"
        if key.startswith("$"):
            raise InputError(
                f"{here} is not known; write null to remove a field. An element of a list that is "
                f'merged is removed by "{_DIRECTIVE}": "delete" in it.'
            )
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = merge(_expect(result.get(key), dict, here), value, here)
        elif isinstance(value, list):
            result[key] = _merge_list(key, _expect(result.get(key), list, here), value, here)
        elif isinstance(result.get(key), (dict, list)):
            # Not said, as below: it may hold secrets.
            kind = type(value).__name__
            raise InputError(f"{here} is a {kind}, where an object or a list is expected.")
        else:
            result[key] = value
    return result


def _expect(found: Any, kind: type, where: str) -> Any:
    if found is None:
        return kind()
    if not isinstance(found, kind):
        words: dict[type, str] = {dict: "an object", list: "a list"}
        changed = "a list" if isinstance(found, list) else f"a {type(found).__name__}"
        raise InputError(f"{where} is {words[kind]}, and what it would change is {changed}.")
    return found


def _merge_list(name: str, base: list[Any], patch: list[Any], where: str) -> list[Any]:
    if name in _ADDED:
        return base + [copy.deepcopy(item) for item in patch if item not in base]
    if name not in _KEYS:
        return copy.deepcopy(patch)
    key = _KEYS[name]
    result = {_identity(name, item): item for item in base}
    seen = set()
    for i, item in enumerate(patch):
        here = f"{where}[{i}]"
        named = item.get(key) if isinstance(item, dict) else None
        if not named or not isinstance(named, (str, int)):
            raise InputError(f"{here} must be an object with {key!r}, by which it is merged.")
        identity = _identity(name, item)
        if identity in seen:
            raise InputError(f"{here} is the second with {key} {named!r}; give it once.")
        if item.get(_DIRECTIVE) == "delete":
            result.pop(identity, None)
        elif _DIRECTIVE in item:
            raise InputError(f"{here} has {_DIRECTIVE} {item[_DIRECTIVE]!r}; only delete is known.")
        else:
            seen.add(identity)
            result[identity] = merge(result.get(identity, {}), item, here)
    return list(result.values())


def _identity(name: str, item: dict[str, Any]) -> tuple[Any, str]:
    """What an element of a list is known by."""
    field, default = _BESIDES.get(name, ("", ""))
    return item[_KEYS[name]], str(item.get(field) or default)
