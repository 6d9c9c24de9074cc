"""Which free ports of this machine pods get, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_pytorch.launcher.constants import POD
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.controllers.kubernetes import ports as ports_module
from kfp_pytorch.local.controllers.kubernetes.ports import Ports

Object = dict[str, Any]


def pod(api: Api, name: str) -> Object:
    containers = [{"name": "server", "image": "a"}]
    metadata = {"name": name, "namespace": "default"}
    return api.create(POD, {"metadata": metadata, "spec": {"containers": containers}})


def offer(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> None:
    """Has these numbers drawn, one after the other."""
    left = iter(numbers)
    monkeypatch.setattr(ports_module.random, "choice", lambda _: next(left))
    monkeypatch.setattr(ports_module, "_is_free", lambda _: True)


def test_a_port_is_one_pods_alone_and_stays_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api()
    ports = Ports(api)
    first, second = pod(api, "first"), pod(api, "second")
    offer(monkeypatch, 20_001, 20_001, 20_002)
    assert [ports.of(each, 80) for each in (first, second, first)] == [20_001, 20_002, 20_001]


def test_the_port_of_a_deleted_pod_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api()
    ports = Ports(api)
    offer(monkeypatch, 20_001, 20_001)
    assert ports.of(pod(api, "first"), 80) == 20_001
    api.delete(POD, "default", "first")
    assert ports.of(pod(api, "second"), 80) == 20_001


def test_a_machine_without_a_free_port_is_an_error_and_no_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = Api()
    monkeypatch.setattr(ports_module, "_is_free", lambda _: False)
    with pytest.raises(OSError, match=r"no port of 127\.0\.0\.1 from 20000 to 31999 is free"):
        Ports(api).of(pod(api, "first"), 80)


@pytest.mark.parametrize(
    ("container", "number"),
    [
        ({"command": ["server"]}, 8080),
        ({"command": ["server", "--port=8080"]}, 20_001),
        ({"args": ["--bind", "0.0.0.0:8080"]}, 20_001),
        ({"env": [{"name": "PORT", "value": "8080"}]}, 20_001),
        ({"args": ["--port", "8080"]}, 20_001),
        ({"args": ["18080", "--batch", "8080"]}, 8080),
        ({"command": ["sh", "-c", "exec server --port 8080"]}, 20_001),
        ({"command": ["python", "-c", "serve('--port 8080')"]}, 8080),
    ],
)
def test_a_server_that_is_told_no_port_gets_its_own(
    monkeypatch: pytest.MonkeyPatch, container: Object, number: int
) -> None:
    api = Api()
    offer(monkeypatch, 20_001)
    server = {"name": "server", "image": "a", "ports": [{"containerPort": 8080}], **container}
    metadata = {"name": "p", "namespace": "default"}
    made = api.create(POD, {"metadata": metadata, "spec": {"containers": [server]}})
    assert Ports(api).of(made, 8080) == number
