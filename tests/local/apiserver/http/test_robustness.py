"""Whatever is sent, the server refuses it or stores it: it does not break."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.api_server import ThreadedServer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kfp_pytorch.launcher.constants import (
    CLAIM,
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    INFERENCE_SERVICE,
    POD,
    PYTORCHJOB,
    SERVICE,
    Kind,
)
from kfp_pytorch.local.apiserver.http import app
from kfp_pytorch.local.apiserver.registry import NAMESPACE, SECRET
from kfp_pytorch.local.apiserver.store import patches
from kfp_pytorch.local.apiserver.store.api import Api, ApiError
from kfp_pytorch.local.apiserver.store.selectors import selector

KINDS = (
    CLAIM,
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    INFERENCE_SERVICE,
    NAMESPACE,
    POD,
    PYTORCHJOB,
    SECRET,
    SERVICE,
)
# The words of real objects, so that what is made up reaches into them.
WORDS = st.sampled_from(
    [
        *("spec", "status", "metadata", "template", "containers", "name", "image", "env", "value"),
        *("labels", "annotations", "ownerReferences", "finalizers", "selector", "matchLabels"),
        *(
            "resources",
            "limits",
            "requests",
            "cpu",
            "volumes",
            "volumeMounts",
            "mountPath",
            "ports",
        ),
        *("data", "stringData", "conditions", "type", "pytorchReplicaSpecs", "Master", "replicas"),
        *("predictor", "model", "strategy", "kind", "uid", "emptyDir", "valueFrom", "fieldRef"),
        *("$patch", "replace", "delete", "$retainKeys", "$deleteFromPrimitiveList/finalizers"),
    ]
)
SCALARS = st.none() | st.booleans() | st.integers(-2, 2**40) | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=25,
)
OBJECTS = st.dictionaries(WORDS, VALUES, max_size=5)
QUIET = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def named(obj: Any, name: str = "a") -> Any:
    meta = obj.get("metadata")
    if meta is None or isinstance(meta, dict):
        obj["metadata"] = {**(meta or {}), "name": name, "namespace": "default"}
    return obj


@QUIET
@given(st.sampled_from(KINDS), OBJECTS, OBJECTS)
def test_any_object_is_stored_or_refused(kind: Kind, first: Any, second: Any) -> None:
    api = Api()
    with suppress(ApiError):
        made = api.create(kind, named(first))
        name = made["metadata"]["name"]
        api.update(kind, named(second, name))
        api.update(kind, {**made, "status": second}, "status")


@QUIET
@given(st.sampled_from([patches.JSON, patches.MERGE, patches.STRATEGIC]), VALUES)
def test_any_patch_is_applied_or_refused(content_type: str, patch: Any) -> None:
    api = Api()
    spec = {"containers": [{"name": "c", "image": "x", "env": [{"name": "A", "value": "b"}]}]}
    pod = api.create(POD, {"metadata": {"name": "p", "namespace": "default"}, "spec": spec})
    resource = api.registry.of(POD)
    with suppress(ApiError):
        new = patches.patched(resource, pod, content_type, patch, "")
        api.update(POD, new)


OPERATIONS = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test", "other"]),
        "path": st.sampled_from(
            ["", "/", "/spec", "/spec/containers/0", "/spec/containers/-", "x"]
        ),
    },
    optional={"value": VALUES, "from": st.sampled_from(["/spec", "/metadata/name", "/nope", ""])},
)


@QUIET
@given(st.lists(OPERATIONS, max_size=4))
def test_any_json_patch_is_applied_or_refused(operations: list[Any]) -> None:
    obj = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}
    before = json.dumps(obj)
    with suppress(ApiError):
        patches.json_patched(obj, operations)
    assert json.dumps(obj) == before


@QUIET
@given(st.text(alphabet="ab=!,()<> in notin.", max_size=20), st.text(max_size=10))
def test_any_selector_is_understood_or_refused(labels: str, fields: str) -> None:
    resource = Api().registry.of(POD)
    with suppress(ApiError):
        selector(resource, labels, fields)({"metadata": {"labels": {"a": "b"}}})


@QUIET
@given(st.sampled_from(KINDS), st.sampled_from(["POST", "PUT", "PATCH", "DELETE"]), VALUES)
def test_any_body_gets_an_answer_that_is_no_error_of_the_server(
    kind: Kind, method: str, body: Any
) -> None:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app.app(Api(), Path("logs")))
        prefix = f"/apis/{kind.api_version}" if kind.group else "/api/v1"
        middle = "" if kind == NAMESPACE else "/namespaces/default"
        name = "" if method == "POST" else "/a"
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.request(
                method,
                f"{prefix}{middle}/{kind.plural}{name}",
                content=json.dumps(body).encode(),
                headers={"content-type": "application/json"},
            )

    assert asyncio.run(ask()).status_code < 500


@pytest.mark.parametrize("body", [b"\xff", b"[" * 5000, b"NaN", b'{"a": NaN}', b'"x"', b"0"])
def test_bytes_that_are_no_object_are_a_bad_request(
    body: bytes, api_server: ThreadedServer
) -> None:
    url = f"{api_server.url}/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
    headers = {"content-type": "application/json"}
    assert httpx.post(url, content=body, headers=headers).status_code == 400


def test_no_answer_waits_for_the_client_to_acknowledge_its_beginning(
    api_server: ThreadedServer,
) -> None:
    with httpx.Client(base_url=api_server.url) as client:
        assert client.get("/api/v1/namespaces").status_code == 200
        open_now = api_server.server.connections._open
        (transport,) = api_server.call(lambda: list(open_now.values()))
        sock = transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
