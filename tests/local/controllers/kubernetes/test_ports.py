"""Which free ports of this machine pods get, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_pytorch.launcher.constants import POD, SERVICE
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


def test_a_pod_with_a_host_name_in_a_service_is_reached_by_it() -> None:
    api = Api()
    ports = Ports(api)
    owner = {"apiVersion": "a/v1", "kind": "A", "name": "j", "uid": "u", "controller": True}
    metadata = {"namespace": "default", "ownerReferences": [owner]}
    spec = {"clusterIP": "None", "selector": {"job": "j"}}
    api.create(SERVICE, {"metadata": {"name": "j", **metadata}, "spec": spec})
    containers = [{"name": "node", "image": "a"}]
    host = {"hostname": "j-node-0-0", "subdomain": "j", "containers": containers}
    first, again = (
        api.create(POD, {"metadata": {"name": name, **metadata}, "spec": host})
        for name in ("j-node-0-0-aaaaa", "j-node-0-0-bbbbb")
    )
    port = ports.endpoint("default", "j-node-0-0.j", 29500)
    assert port == ports.of(first, 29500) == ports.of(again, 29500)
    assert port != ports.endpoint("default", "j-node-0-1.j", 29500)
    assert ports.endpoint("default", "j-node-0-0.j", None) == 0
    # Not a name in that service, and not a service.
    assert ports.endpoint("default", "train.j", None) is None
    assert ports.endpoint("default", "j-node-0-0.k", None) is None
