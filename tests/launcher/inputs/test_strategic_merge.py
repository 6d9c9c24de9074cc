"""A patch of the pod template whose elements are alike."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs.strategic_merge import merge


@pytest.mark.parametrize(
    ("name", "elements"),
    [
        ("ports", [{"containerPort": 53}, {"containerPort": 53, "protocol": "UDP"}]),
        (
            "topologySpreadConstraints",
            [
                {"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
                {"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"},
            ],
        ),
    ],
)
def test_what_kubernetes_tells_apart_is_not_merged(name: str, elements: Any) -> None:
    assert merge({}, {name: elements}, "p") == {name: elements}
    changed = [{**element, "name": "x"} for element in elements]
    assert merge({name: elements}, {name: changed}, "p") == {name: changed}


@pytest.mark.parametrize(
    ("name", "elements", "which"),
    [
        ("volumeMounts", [{"mountPath": "/a"}, {"mountPath": "/a"}], "mountPath '/a'"),
        ("initContainers", [{"name": "a", "image": "x"}, {"name": "a"}], "name 'a'"),
        ("env", [{"name": "A", "value": "1"}, {"name": "A", "$patch": "delete"}], "name 'A'"),
        ("ports", [{"containerPort": 1}, {"containerPort": 1, "protocol": "TCP"}], "containerPort"),
        ("schedulingGates", [{"name": "a/b"}, {"name": "a/b"}], "name 'a/b'"),
    ],
)
def test_an_element_that_is_given_twice_is_refused(name: str, elements: Any, which: str) -> None:
    with pytest.raises(InputError, match=rf"p\.{name}\[1\] is the second with {which}"):
        merge({}, {name: elements}, "p")


def test_an_element_that_is_taken_away_may_be_given_anew() -> None:
    source = {"secretKeyRef": {"name": "s", "key": "k"}}
    anew = [{"name": "A", "$patch": "delete"}, {"name": "A", "valueFrom": source}]
    found = merge({"env": [{"name": "A", "value": "1"}]}, {"env": anew}, "p")
    assert found == {"env": [{"name": "A", "valueFrom": source}]}


@pytest.mark.parametrize("directive", ["$patch", "$retainKeys", "$setElementOrder/env"])
def test_a_directive_that_would_be_taken_for_a_field_is_refused(directive: str) -> None:
    with pytest.raises(InputError, match="is not known; write null to remove a field"):
        merge({}, {"spec": {directive: "replace"}}, "p")
