"""A container's variables and command as Kubernetes makes them."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import CONFIG_MAP, Kind
from kfp_pytorch.local.apiserver.registry import SECRET
from kfp_pytorch.local.controllers.kubelet.environment import (
    ConfigError,
    command,
    expand,
    variables,
)
from kfp_pytorch.local.quantities import quantity

Object = dict[str, Any]

SECRETS = {"s": {"kind": "Secret", "data": {"k": base64.b64encode(b"v").decode()}}}
MAPS = {"c": {"kind": "ConfigMap", "data": {"a": "1", "b": "2"}}}
POD = {
    "metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {"x/y": "z"}},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {"memory": "1Gi"}}}]},
    "status": {"podIP": "127.0.0.1"},
}


def find(kind: Kind, name: str) -> Object | None:
    return {SECRET: SECRETS, CONFIG_MAP: MAPS}[kind].get(name)


def declared(*env: Object, sources: tuple[Object, ...] = ()) -> dict[str, str]:
    return variables(POD, {"name": "main", "env": list(env), "envFrom": list(sources)}, find)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(A)", "x1y1"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A} $(A", "$A ${A} $(A"),
        ("$(date) `date` \\$", "$(date) `date` \\$"),
    ],
)
def test_references_are_replaced_as_kubernetes_does(text: str, expected: str) -> None:
    assert expand(text, {"A": "1"}) == expected


def test_later_variables_see_and_replace_earlier_ones() -> None:
    found = declared(
        {"name": "a", "value": "own"},
        {"name": "B", "value": "$(a)+$(later)"},
        {"name": "later", "value": "x"},
        {"name": "EMPTY"},
        sources=({"configMapRef": {"name": "c"}},),
    )
    assert found == {"a": "own", "b": "2", "B": "own+$(later)", "later": "x", "EMPTY": ""}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"secretKeyRef": {"name": "s", "key": "k"}}, "v"),
        ({"configMapKeyRef": {"name": "c", "key": "a"}}, "1"),
        ({"fieldRef": {"fieldPath": "metadata.namespace"}}, "ns"),
        ({"fieldRef": {"fieldPath": "metadata.labels['x/y']"}}, "z"),
        ({"fieldRef": {"fieldPath": "status.podIP"}}, "127.0.0.1"),
        ({"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}, "1024"),
    ],
)
def test_values_come_from_elsewhere(source: Object, expected: str) -> None:
    assert declared({"name": "V", "valueFrom": source}) == {"V": expected}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"secretKeyRef": {"name": "none", "key": "k"}}, 'secret "none" not found'),
        ({"secretKeyRef": {"name": "s", "key": "no"}}, "couldn't find key no in Secret ns/s"),
        ({"configMapKeyRef": {"name": "no", "key": "k"}}, 'configmap "no" not found'),
        ({"configMapKeyRef": {"name": "c", "key": "no"}}, "couldn't find key no in ConfigMap ns/c"),
    ],
)
def test_a_missing_source_is_named_unless_it_is_optional(source: Object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        declared({"name": "V", "valueFrom": source})
    ((field, reference),) = source.items()
    optional = {field: {**reference, "optional": True}}
    assert declared({"name": "V", "valueFrom": optional}) == {}


def test_the_command_line_is_command_and_args() -> None:
    container = {"command": ["sh", "-c"], "args": ["echo $(A) $HOME"]}
    assert command(container, {"A": "1"}) == ["sh", "-c", "echo 1 $HOME"]


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("500m", 0.5),
        ("2", 2),
        ("1.5", 1.5),
        ("1Ki", 1024),
        ("2Gi", 2 * 1024**3),
        ("3k", 3000),
        ("1e3", 1000),
        ("1E", 10**18),
        (4, 4),
    ],
)
def test_an_amount_is_read_with_any_suffix_of_kubernetes(text: str | int, amount: float) -> None:
    assert quantity(text) == amount


def test_an_invalid_amount_is_refused() -> None:
    with pytest.raises(ValueError, match="'2 GB'"):
        quantity("2 GB")
