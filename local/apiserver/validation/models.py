"""The fields of the official client's models, read from its source without importing it.

The import takes longer than the whole server takes to start, and 40 MB.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

# Fields of Kubernetes 1.34 that the client's version does not have.
_NEWER: dict[str, dict[str, str]] = {
    "V1Container": {"restartPolicyRules": "list[object]"},
    "V1EnvVarSource": {"fileKeyRef": "object"},
    "V1EphemeralContainer": {"restartPolicyRules": "list[object]"},
    "V1Lifecycle": {"stopSignal": "str"},
    "V1PodCondition": {"observedGeneration": "int"},
    "V1PodResourceClaim": {"resourceClaimName": "str", "resourceClaimTemplateName": "str"},
    "V1PodSecurityContext": {"seLinuxChangePolicy": "str", "supplementalGroupsPolicy": "str"},
    "V1PodSpec": {"hostnameOverride": "str", "resources": "V1ResourceRequirements"},
    "V1PodStatus": {"observedGeneration": "int"},
    "V1ResourceClaim": {"request": "str"},
    "V1Volume": {"image": "object"},
    "V1VolumeProjection": {"podCertificate": "object"},
}
_IMPORT = re.compile(r"^from kubernetes\.client\.models\.(\w+) import (\w+)$", re.MULTILINE)


@lru_cache(maxsize=512)
def fields(model: str) -> dict[str, str]:
    """The JSON names of the fields of a model such as `V1PodSpec`, and the type of each."""
    text = (_folder() / f"{_modules()[model]}.py").read_text()
    types, names = _table(text, "openapi_types"), _table(text, "attribute_map")
    found = {names[attribute]: kind for attribute, kind in types.items()}
    return found | _NEWER.get(model, {})


def pruned(value: Any, model: str, path: str, dropped: list[str]) -> Any:
    """A value without the fields that its model does not have, whose paths are added to `dropped`.

    `model`: as `fields` has it; of another type than that a value is left as it is.
    """
    if model.startswith("list[") and isinstance(value, list):
        inner = model[len("list[") : -1]
        return [pruned(item, inner, f"{path}[{i}]", dropped) for i, item in enumerate(value)]
    if model not in _modules() or not isinstance(value, dict):
        return value
    known = fields(model)
    dropped += [f"{path}.{key}" for key in value if key not in known]
    return {
        key: pruned(item, known[key], f"{path}.{key}", dropped)
        for key, item in value.items()
        if key in known
    }


def _table(text: str, name: str) -> dict[str, str]:
    start = text.index("{", text.index(f"    {name} = {{"))
    found: dict[str, str] = ast.literal_eval(text[start : text.index("}", start) + 1])
    return found


@cache
def _modules() -> dict[str, str]:
    listing = (_folder() / "__init__.py").read_text()
    return {name: module for module, name in _IMPORT.findall(listing)}


@cache
def _folder() -> Path:
    found = importlib.util.find_spec("kubernetes")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("the kubernetes client is not installed")
    return Path(found.origin).parent / "client" / "models"
