"""Checks of parts of a pod's spec: placement, security context, volumes, sources, resources.

Source: kubernetes v1.32 `pkg/apis/core/validation/validation.go`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kfp_pytorch.local.apiserver.errors import Cause, Object
from kfp_pytorch.local.apiserver.validation.fields import (
    check_key,
    check_label,
    forbidden,
    invalid_value,
    required,
    unsupported,
)
from kfp_pytorch.local.quantities import quantity

_EFFECTS = ["NoSchedule", "PreferNoSchedule", "NoExecute"]
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_SECCOMP = ["Localhost", "RuntimeDefault", "Unconfined"]
_IDS = ("runAsUser", "runAsGroup", "fsGroup")
_LARGEST_ID = 2**31 - 1
_FIELD = re.compile(
    r"metadata\.(name|namespace|uid|(labels|annotations)\['[^']+'\])"
    r"|spec\.(nodeName|serviceAccountName)|status\.(host|pod)IPs?"
)
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
# A request may be under the limit of these alone.
_OVERCOMMITTED = ("cpu", "memory", "ephemeral-storage")


def check_placement(spec: Object, path: str) -> Iterator[Cause]:
    """What is wrong with a pod's node selector, tolerations and affinity."""
    for key, value in (spec.get("nodeSelector") or {}).items():
        yield from check_label(key, value, f"{path}.nodeSelector")
    for index, toleration in enumerate(spec.get("tolerations") or []):
        yield from _check_toleration(toleration, f"{path}.tolerations[{index}]")
    affinity = spec.get("affinity") or {}
    yield from _check_nodes(affinity.get("nodeAffinity") or {}, f"{path}.affinity.nodeAffinity")
    for kind in ("podAffinity", "podAntiAffinity"):
        yield from _check_pods(affinity.get(kind) or {}, f"{path}.affinity.{kind}")


def _check_nodes(affinity: Object, path: str) -> Iterator[Cause]:
    if affinity.get(_REQUIRED) is not None:
        terms, at = affinity[_REQUIRED].get("nodeSelectorTerms"), f"{path}.{_REQUIRED}"
        if not terms:
            yield required(f"{at}.nodeSelectorTerms", "must have at least one node selector term")
        for index, term in enumerate(terms or []):
            yield from _check_expressions(term, f"{at}.nodeSelectorTerms[{index}]")
    for index, preferred in enumerate(affinity.get(_PREFERRED) or []):
        at = f"{path}.{_PREFERRED}[{index}]"
        yield from _check_weight(preferred, at)
        yield from _check_expressions(preferred.get("preference") or {}, f"{at}.preference")


def _check_pods(affinity: Object, path: str) -> Iterator[Cause]:
    for index, term in enumerate(affinity.get(_REQUIRED) or []):
        yield from _check_topology(term, f"{path}.{_REQUIRED}[{index}]")
    for index, preferred in enumerate(affinity.get(_PREFERRED) or []):
        at = f"{path}.{_PREFERRED}[{index}]"
        yield from _check_weight(preferred, at)
        yield from _check_topology(preferred.get("podAffinityTerm") or {}, f"{at}.podAffinityTerm")


def _check_topology(term: Object, path: str) -> Iterator[Cause]:
    if not term.get("topologyKey"):
        yield required(f"{path}.topologyKey", "can not be empty")


def _check_weight(preferred: Object, path: str) -> Iterator[Cause]:
    weight = preferred.get("weight") or 0
    if not 1 <= weight <= 100:
        yield invalid_value(f"{path}.weight", weight, "must be in the range 1-100")


def _check_expressions(term: Object, path: str) -> Iterator[Cause]:
    for index, expression in enumerate(term.get("matchExpressions") or []):
        at = f"{path}.matchExpressions[{index}]"
        operator, count = expression.get("operator") or "", len(expression.get("values") or [])
        if operator in ("In", "NotIn") and not count:
            yield required(f"{at}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        elif operator in ("Exists", "DoesNotExist") and count:
            why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield forbidden(f"{at}.values", why)
        elif operator in ("Gt", "Lt") and count != 1:
            why = "must be specified single value when `operator` is 'Lt' or 'Gt'"
            yield required(f"{at}.values", why)
        elif operator not in _OPERATORS:
            yield invalid_value(f"{at}.operator", operator, "not a valid selector operator")
        yield from check_key(expression.get("key") or "", f"{at}.key")


def _check_toleration(toleration: Object, path: str) -> Iterator[Cause]:
    key, effect = toleration.get("key") or "", toleration.get("effect") or ""
    operator, value = toleration.get("operator") or "Equal", toleration.get("value") or ""
    if key:
        yield from check_key(key, f"{path}.key")
    elif operator != "Exists":
        why = 'operator must be Exists when `key` is empty, which means "match all values and '
        yield invalid_value(f"{path}.operator", operator, f'{why}all keys"')
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        yield invalid_value(f"{path}.effect", effect, why)
    if operator == "Exists" and value:
        why = "value must be empty when `operator` is 'Exists'"
        yield invalid_value(f"{path}.operator", value, why)
    elif operator not in ("Equal", "Exists"):
        yield unsupported(f"{path}.operator", operator, ["Equal", "Exists"])
    if effect not in ("", *_EFFECTS):
        yield unsupported(f"{path}.effect", effect, _EFFECTS)


def check_security(context: Object, path: str) -> Iterator[Cause]:
    """What is wrong with the security context of a pod or a container."""
    for field in _IDS:
        number = context.get(field)
        if number is not None and not 0 <= number <= _LARGEST_ID:
            why = f"must be between 0 and {_LARGEST_ID}, inclusive"
            yield invalid_value(f"{path}.{field}", number, why)
    profile = context.get("seccompProfile")
    if profile is not None:
        where = f"{path}.seccompProfile.type"
        if not profile.get("type"):
            yield required(where, "type is required when seccompProfile is set")
        elif profile["type"] not in _SECCOMP:
            yield unsupported(where, profile["type"], _SECCOMP)


def check_volume(volume: Object, path: str) -> Iterator[Cause]:
    """What is wrong with where a volume's content comes from."""
    kinds = sorted(key for key, source in volume.items() if key != "name" and source is not None)
    for kind in kinds[1:]:
        yield forbidden(f"{path}.{kind}", "may not specify more than 1 volume type")


def check_source(source: Object, path: str) -> Iterator[Cause]:
    """What is wrong with where a variable's value comes from."""
    if len(source) > 1:
        yield invalid_value(path, "", "may not have more than one field specified at a time")
    elif not source:
        which = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"
        yield invalid_value(path, "", f"must specify one of: {which}")
    for kind in ("secretKeyRef", "configMapKeyRef"):
        reference = source.get(kind)
        if reference is None:
            continue
        key = reference.get("key") or ""
        if not reference.get("name"):
            yield required(f"{path}.{kind}.name")
        if not key:
            yield required(f"{path}.{kind}.key")
        elif not _KEY.fullmatch(key):
            why = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
            yield invalid_value(f"{path}.{kind}.key", key, why)
    field = (source.get("fieldRef") or {}).get("fieldPath")
    if field is not None and not _FIELD.fullmatch(field):
        why = f"error converting fieldPath: field label not supported: {field}"
        yield invalid_value(f"{path}.fieldRef.fieldPath", field, why)


def check_amounts(resources: Object, path: str) -> Iterator[Cause]:
    """What is wrong with requests beside their limits; each is known to be a quantity."""
    limits = resources.get("limits") or {}
    for name, request in (resources.get("requests") or {}).items():
        shared, limit = name in _OVERCOMMITTED, limits.get(name)
        if limit is None:
            if not shared and "/" in name:
                why = "Limit must be set for non overcommitable resources"
                yield required(f"{path}.limits", why)
        elif not shared and quantity(request) != quantity(limit):
            why = f"must be equal to {name} limit of {limit}"
            yield invalid_value(f"{path}.requests", request, why)
        elif quantity(request) > quantity(limit):
            why = f"must be less than or equal to {name} limit of {limit}"
            yield invalid_value(f"{path}.requests", request, why)
    for group in ("limits", "requests"):
        for name, amount in (resources.get(group) or {}).items():
            if "/" in name and quantity(amount) % 1:
                yield invalid_value(f"{path}.{group}[{name}]", amount, "must be an integer")
