"""A training container's environment and argv: rendered, merged, measured and kept byte for byte.

Kubernetes itself changes `$(NAME)` and `$$` in arguments and values:
https://github.com/kubernetes/kubernetes/blob/master/third_party/forked/golang/expansion/expand.go
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import k8s, readers

# Linux takes no single argument or variable above 131,072 bytes, and KFP passes all inputs of
# a step to its launcher as one such argument.
SIZE_LIMIT = 100_000
_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_SET_BY_LAUNCHER = (
    constants.OUTPUT_ENV,
    constants.RESUME_FROM_ENV,
    constants.TERMINATION_LOG_ENV,
    constants.DATASET_ENV,
    constants.DATASETS_ENV,
)
# https://github.com/kubeflow/trainer/blob/v1.9.2/pkg/controller.v1/pytorch/envvar.go
_SET_BY_OPERATOR = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
    "RANK",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "PET_NODE_RANK",
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
)
# The key of an entry of a Secret or ConfigMap.
_ENTRY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
# https://kubernetes.io/docs/concepts/workloads/pods/downward-api/
_FIELD = re.compile(
    r"metadata\.(name|namespace|uid|(labels|annotations)\['[^']+'\])"
    r"|spec\.(nodeName|serviceAccountName)|status\.(host|pod)IPs?"
)
_RESOURCE = re.compile(r"(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-.+)")
# The required fields of each source of a variable's value.
_REFERENCES = {
    "secretKeyRef": ("name", "key"),
    "configMapKeyRef": ("name", "key"),
    "fieldRef": ("fieldPath",),
    "resourceFieldRef": ("resource",),
}


def variables(name: str, value: Any) -> tuple[dict[str, Any], ...]:
    """Read environment variables, into the form of a container's `env`.

    `value`: an object from names to a string, a number, true or false, or a reference such as
    `{"secretKeyRef": {"name": "s", "key": "k"}}`.
    """
    if not readers.is_unset(value) and not isinstance(value, Mapping):
        # The value is not shown: it may hold secrets.
        kind = type(value).__name__
        raise InputError(f'{name} must be an object, such as {{"NAME": "value"}}, not a {kind}.')
    read = tuple(_variable(key, item) for key, item in readers.mapping(name, value).items())
    for variable in read:
        check_name(variable["name"], name)
    return read


def merged(
    given: Iterable[Mapping[str, Any]], of_task: Iterable[Mapping[str, Any]]
) -> tuple[dict[str, Any], ...]:
    """Return the training container's `env` from the task's variables and the input's."""
    by_name = {str(item.get("name")): dict(item) for item in (*of_task, *given)}
    for name in by_name:
        check_name(name, "env")
        check_not_reserved(name, "env")
    return tuple(by_name.values())


def _variable(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, (dict, list)):
        if isinstance(value, list) or len(value) != 1 or next(iter(value)) not in _REFERENCES:
            raise InputError(
                f"env[{name!r}] must be a string, a number, true or false, or an object with one "
                f"of {', '.join(_REFERENCES)}."
            )
        source, reference = next(iter(value.items()))
        return {"name": name, "valueFrom": {source: _reference(name, source, reference)}}
    return {"name": name, "value": escaped(readers.rendered(f"env[{name!r}]", value))}


def _reference(name: str, source: str, given: Any) -> dict[str, Any]:
    """Check where a variable's value is; return it with names and keys as texts."""
    where = f"env[{name!r}].{source}"
    wanted = _REFERENCES[source]
    if not isinstance(given, dict):
        # What it is may be the secret itself.
        raise InputError(
            f"{where} is a {type(given).__name__}; it must be an object with "
            f"{' and '.join(wanted)}."
        )
    reference = readers.mapping(where, given)
    for key in wanted:
        reference[key] = readers.text(f"{where}.{key}", reference.get(key))
        if not reference[key]:
            raise InputError(f"{where} lacks {key}; it needs {' and '.join(wanted)}.")
    if "name" in wanted:
        k8s.dns_subdomain(f"{where}.name", reference["name"])
    if source == "fieldRef" and not _FIELD.fullmatch(reference["fieldPath"]):
        raise InputError(
            f"{where}.fieldPath is {reference['fieldPath']!r}, which no variable can have; write "
            "metadata.name, status.podIP, metadata.labels['KEY'] or the like."
        )
    if source == "resourceFieldRef" and not _RESOURCE.fullmatch(reference["resource"]):
        raise InputError(
            f"{where}.resource is {reference['resource']!r}; write limits.cpu, requests.memory or "
            "the like."
        )
    if "key" in wanted and not _ENTRY.fullmatch(reference["key"]):
        raise InputError(
            f"{where}.key is {reference['key']!r}; an entry's key is at most 253 letters, digits, "
            "'-', '_' and '.'."
        )
    return reference


def check_name(name: str, where: str) -> None:
    """Refuse a name that no environment variable can have."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{where} has the name {name!r}; a variable's name has letters, digits, '_', '-' and "
            "'.', and does not begin with a digit."
        )


def check_not_reserved(name: str, where: str) -> None:
    """Refuse the name of a variable that the launcher or the operator sets."""
    check_not_of_launcher(name, where)
    if name in _SET_BY_OPERATOR:
        raise InputError(
            f"{where} may not set {name}: the operator does, from num_nodes and nproc_per_node."
        )


def check_not_of_launcher(name: str, where: str) -> None:
    """Refuse the name of a variable that the launcher sets."""
    if name in _SET_BY_LAUNCHER:
        raise InputError(f"{where} may not set {name}: the launcher does.")


def escaped(text: str) -> str:
    """Escape a text so that Kubernetes expands no `$(NAME)` in it."""
    return text.replace("$", "$$") if "$(" in text or "$$" in text else text


def variable(name: str, value: str) -> dict[str, str]:
    """Return a variable with a literal value, in the form of a container's `env`."""
    return {"name": name, "value": escaped(value)}


def check_size(
    command: Iterable[str], args: Iterable[str], env: Iterable[Mapping[str, Any]]
) -> None:
    """Refuse command, arguments and environment of more than 100,000 bytes together."""
    sizes = {f"command[{i}]": len(item.encode()) for i, item in enumerate(command)}
    sizes |= {f"args[{i}]": len(item.encode()) for i, item in enumerate(args)}
    sizes |= {f"env[{v['name']!r}]": len(str(v.get("value", "")).encode()) for v in env}
    total = sum(sizes.values())
    if total > SIZE_LIMIT:
        largest = max(sizes, key=lambda name: sizes[name])
        raise InputError(
            f"command, args and env are {total:,} bytes together, {largest} alone "
            f"{sizes[largest]:,}; the limit is {SIZE_LIMIT:,}. Put the content into the image, or "
            "into a ConfigMap or a file that the pods read."
        )
