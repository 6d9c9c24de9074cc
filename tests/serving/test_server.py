from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import select
import socket
import threading
import time
from typing import Any

import numpy as np
import pytest


def image_of(quarter: int) -> list[list[list[int]]]:
    """A 4 x 4 image with one bright quarter: the class that the exported model says."""
    return [np.kron(np.eye(4, dtype=int)[quarter].reshape(2, 2), np.full((2, 2), 16)).tolist()]


Server = Any
V1 = "/v1/models/digits:predict"
V2 = "/v2/models/digits/infer"
FLAT = [x for row in image_of(2)[0] for x in row]
NESTED = [image_of(2)]


def v2(**changes: Any) -> dict[str, Any]:
    tensor = {"name": "image", "shape": [1, 1, 4, 4], "datatype": "FP32", "data": FLAT}
    return {"inputs": [tensor | changes]}


def with_pixel(literal: str) -> str:
    """A V1 body with a number that Python's JSON would not write."""
    return json.dumps({"instances": NESTED}).replace("16", literal, 1)


BAD_V1: dict[str, tuple[Any, str]] = {
    "not JSON": ("{", "body"),
    "nothing": ("", "body"),
    "not text": (b"\xff\xfe", "body: "),
    "nested without end": ("[" * 100_000, "body"),
    "a list": ([], "instances"),
    "no instances": ({}, "instances"),
    "null": ({"instances": None}, "instances: expected a list, found null"),
    "a number": ({"instances": 5}, "instances: expected a list, found a number"),
    "an object": ({"instances": {}}, "instances: expected a list, found an object"),
    "no instance": ({"instances": []}, "instances: expected at least one"),
    "strings": ({"instances": ["a"]}, "instances[0]: expected a list, found a string"),
    "base64": ({"instances": [{"b64": "?"}]}, "instances[0]: not base64: "),
    "ragged": ({"instances": [[[[1] * 4] * 3 + [[1]]]]}, "instances[0][0][3]: expected 4"),
    "ragged batch": ({"instances": [*NESTED, []]}, "instances[1]: expected 1 elements, found 0"),
    "too wide": ({"instances": [[[[1] * 5] * 4]]}, "instances[0][0][0]: expected 4"),
    "too deep": ({"instances": [[[[[1]] * 4] * 4]]}, "instances[0][0][0][0]: expected a number"),
    "too flat": ({"instances": FLAT}, "instances[0]: expected a list, found a number"),
    "booleans": ({"instances": [[[[True] * 4] * 4]]}, "found a boolean"),
    "one boolean": ({"instances": [[[[1, 1, 1, True]] * 4]]}, "instances[0][0][0][3]"),
    "one null": ({"instances": [[[[1, 1, 1, None]] * 4]]}, "instances[0][0][0][3]"),
    "NaN": (with_pixel("NaN"), "body"),
    "infinity": (with_pixel("1e400"), "body"),
    "over FP32": (with_pixel("1e39"), "instances[0][0][2][0]: 1e+39 is not a finite FP32"),
}

BAD_V2: dict[str, tuple[Any, str]] = {
    "not JSON": ("{", "not JSON"),
    "not text": (b"\x80", "body: not JSON: "),
    "nothing": ("", "body"),
    "nested without end": ("[" * 100_000, "body"),
    "a list": ([], "body"),
    "a string": ('"x"', "body"),
    "V1's body": ({"instances": NESTED}, "inputs"),
    "no inputs": ({"inputs": []}, "inputs"),
    "inputs null": ({"inputs": None}, "inputs"),
    "two inputs": ({"inputs": v2()["inputs"] * 2}, "inputs: the model takes one input"),
    "another name": (v2(name="pixels"), "inputs: the model takes one input named 'image'"),
    "shape a string": (v2(shape="1"), "inputs[0].shape: must be a list of whole numbers"),
    "shape of strings": (v2(shape=["a"]), "inputs[0].shape: must be a list of whole numbers"),
    "shape missing": ({"inputs": [{"name": "image", "datatype": "FP32", "data": FLAT}]}, "shape"),
    "another shape": (v2(shape=[2, 4], data=FLAT[:7]), "inputs[0].shape"),
    "negative shape": (v2(shape=[-1, 1, 4, 4]), "inputs[0].shape"),
    "no rows": (v2(shape=[0, 1, 4, 4], data=[]), "inputs[0].shape"),
    "too few": (v2(data=FLAT[:7]), "inputs[0].data: expected 16 elements, found 7"),
    "nested otherwise": (v2(data=[[[FLAT]]]), "inputs[0].data[0][0]: expected 4"),
    "data a number": (v2(data=5), "data"),
    "data null": (v2(data=None), "data"),
    "data of strings": (v2(data=["1"] * 16), "inputs[0].data[0]: expected a number"),
    "BOOL": (v2(datatype="BOOL", data=[True] * 16), "inputs[0].datatype"),
    "BYTES": (v2(datatype="BYTES", data=["x"] * 16), "inputs[0].shape: [1, 1, 4, 4] is not [16]"),
    "FP16 in JSON": (v2(datatype="FP16"), "FP16"),
    "an unknown type": (v2(datatype="FP31"), "inputs[0].datatype"),
    "a type that is no string": (v2(datatype=32), "inputs[0].datatype: must be a string"),
    "halves in INT64": (v2(datatype="INT64", data=[0.5] * 16), "inputs[0].data[0]: 0.5"),
    "300 in UINT8": (v2(datatype="UINT8", data=[300] * 16), "inputs[0].data[0]: 300"),
    "NaN": (json.dumps(v2()).replace("16", "NaN", 1), "body: not JSON"),
    "infinity": (json.dumps(v2()).replace("16", "1e400", 1), "body: not JSON"),
    "an integer over FP64": (v2(data=[10**309] * 16), "body: not JSON"),
    "an integer over FP32": (v2(data=[10**39] * 16), "inputs[0].data[0]: 1e+39 is not"),
    "an id that is not Unicode": (v2() | {"id": "\ud800"}, "body: not JSON"),
    "an id that is no string": (v2() | {"id": 5}, "id: 5 is no string"),
    "an output twice": (v2() | {"outputs": [{"name": "class"}] * 2}, "has one of them twice"),
    "a shape of many": (v2(shape=[1] * 100_000), "inputs[0].shape: [1, 1, "),
    "an id of many": (v2() | {"id": [1] * 100_000}, "id: [1, 1, "),
    "an unknown output": (v2() | {"outputs": [{"name": "x"}]}, "outputs: ['x'] are none of"),
}


def assert_refused(server: Server, path: str, body: Any, reason: str) -> None:
    response = server.post(path, body)
    assert response.status == 400, response.data
    error = response.json()["error"]
    assert reason in error
    assert len(error) <= 500
    assert "Traceback" not in error
    assert server.post(V1, {"instances": NESTED}).status == 200


@pytest.mark.parametrize(("body", "reason"), BAD_V1.values(), ids=BAD_V1)
def test_a_bad_v1_request_is_the_clients_fault_and_says_where(
    server: Server, body: Any, reason: str
) -> None:
    assert_refused(server, V1, body, reason)


@pytest.mark.parametrize(("body", "reason"), BAD_V2.values(), ids=BAD_V2)
def test_a_bad_v2_request_is_the_clients_fault_and_says_where(
    server: Server, body: Any, reason: str
) -> None:
    assert_refused(server, V2, body, reason)


def v2_answers(response: Any) -> list[dict[str, Any]]:
    assert response.status == 200, response.data
    tensors = {tensor["name"]: tensor["data"] for tensor in response.json()["outputs"]}
    rows = zip(tensors["class"], tensors["label"], tensors["score"], strict=True)
    return [{"class": c, "label": label, "score": score} for c, label, score in rows]


def test_both_protocols_give_equal_predictions(server: Server) -> None:
    images = [image_of(quarter) for quarter in (3, 0, 2)]
    by_v1 = server.post(V1, {"instances": images}).json()["predictions"]
    assert [answer["class"] for answer in by_v1] == [3, 0, 2]
    flat = np.array(images).ravel().tolist()
    for body in (
        v2(shape=[3, 1, 4, 4], data=flat),
        v2(shape=[3, 1, 4, 4], data=images),
        v2(shape=[3, 1, 4, 4], data=flat, datatype="INT64"),
        v2(shape=[3, 1, 4, 4], data=flat, datatype="FP64"),
    ):
        for by_v2, expected in zip(v2_answers(server.post(V2, body)), by_v1, strict=True):
            assert by_v2 == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_binary_v2_request_is_answered(server: Server, dtype: type[np.floating[Any]]) -> None:
    pixels = np.array(FLAT, dtype=dtype).tobytes()
    datatype = f"FP{8 * len(pixels) // 16}"
    tensor = {"name": "image", "shape": [1, 1, 4, 4], "datatype": datatype}
    head = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": len(pixels)}}]})
    sent = {"content_type": "application/octet-stream"}
    length = {"inference_header_content_length": str(len(head))}
    answers = v2_answers(server.post(V2, head.encode() + pixels, **sent, **length))
    assert answers[0]["class"] == 2
    for broken in ({}, {"inference_header_content_length": "x"}):
        assert server.post(V2, head.encode() + pixels, **sent, **broken).status == 400
    assert server.post(V2, head.encode() + pixels[:10], **sent, **length).status == 400


def test_outputs_come_as_binary_where_that_was_asked_for_all(server: Server) -> None:
    asked = [{"name": "label"}, {"name": "class", "parameters": {"binary_data": False}}]
    body = v2() | {"parameters": {"binary_data_output": True}, "outputs": asked}
    response = server.post(V2, body)
    length = int(response.headers["inference-header-content-length"])
    label, number = json.loads(response.data[:length])["outputs"]
    assert response.data[length:] == b"\3\0\0\0two"
    assert (label["parameters"], number["data"]) == ({"binary_data_size": 7}, [2])


def test_the_models_own_output_comes_on_request(server: Server) -> None:
    response = server.post(V2, v2() | {"id": "7", "outputs": [{"name": "logits"}]}).json()
    assert response["id"] == "7"
    assert [(t["name"], t["data"]) for t in response["outputs"]] == [("logits", [0, 0, 10, 0])]


def test_the_content_type_must_be_json(server: Server) -> None:
    body = {"instances": NESTED}
    refused = server.post(V1, body, content_type="text/plain")
    assert (refused.status, "application/json" in refused.json()["error"]) == (400, True)
    for accepted in ("application/json; charset=utf-8", "Application/JSON"):
        assert server.post(V1, body, content_type=accepted).status == 200
    form = server.post(V2, v2(), content_type="application/x-www-form-urlencoded")
    assert form.status == 400
    assert "content-type application/json (found: application/x-www-form" in form.json()["error"]


@pytest.mark.parametrize("path", [V1, V2])
def test_a_compressed_body_is_refused_by_name(server: Server, path: str) -> None:
    response = server.post(path, gzip.compress(b"{}"), content_encoding="gzip")
    assert response.status == 415
    assert "content-encoding: 'gzip' is not read" in response.json()["error"]
    assert server.post(V1, {"instances": NESTED}, content_encoding="identity").status == 200


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"shape": "x"}, "inputs[0].shape: "),
        ({"datatype": 5}, "inputs[0].datatype: "),
        ({"parameters": {"binary_data_size": "64"}}, "inputs[0].parameters.binary_data_size: "),
        ({"parameters": {"binary_data_size": -1}}, "inputs[0].parameters.binary_data_size: "),
        (
            {"parameters": {"binary_data_size": 10**18}},
            "binary_data_size states 1000000000000000000",
        ),
        ({"parameters": {"binary_data_size": 60}}, "states 60 bytes, and 64 follow"),
        ({"parameters": {"binary_data_size": 68}}, "states 68 bytes, and 64 follow"),
    ],
)
def test_the_head_of_a_binary_request_is_refused_by_its_field(
    server: Server, changes: dict[str, Any], reason: str
) -> None:
    head = json.dumps(v2(data=None, **changes)).encode()
    response = server.post(
        V2,
        head + bytes(64),
        content_type="application/octet-stream",
        inference_header_content_length=str(len(head)),
    )
    assert response.status == 400
    assert reason in response.json()["error"]


@pytest.mark.parametrize("stated", ["-1", "1e1", "٣", "9" * 20, "9" * 5000])
def test_a_length_that_is_none_is_the_clients_fault(server: Server, stated: str) -> None:
    head = {"content-type": "application/octet-stream", "inference-header-content-length": stated}
    sent = {key: value.encode() for key, value in head.items()}
    response = server.http.request("POST", V2, body=json.dumps(v2()), headers=sent)  # type: ignore[arg-type]
    assert response.status == 400
    assert "is not the length of the JSON" in response.json()["error"]


def test_a_body_over_the_limit_is_refused_with_the_limit(server: Server) -> None:
    response = server.post(V1, {"instances": NESTED * 30_000})
    assert response.status == 413
    assert "larger than 1048576 bytes" in response.json()["error"]


@pytest.mark.parametrize("path", [V1, V2])
def test_a_body_over_the_limit_without_a_length_is_refused_too(server: Server, path: str) -> None:
    chunks = (b" " * 65_536 for _ in range(17))
    response = server.http.request(
        "POST", path, body=chunks, headers={"content-type": "application/json"}, chunked=True
    )
    assert response.status == 413
    assert "larger than 1048576 bytes" in response.json()["error"]


def test_many_large_bodies_at_once_are_told_to_come_back(server: Server) -> None:
    large = 1024 * 1024
    head = f"POST {V1} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            for _ in range(5)
        ]
        for client in clients:
            client.sendall(f"{head}content-length: {large}\r\n\r\n".encode() + b" " * (large - 1))
        # None of them is whole: the one that is answered is the one that is too many.
        answered, _, _ = select.select(clients, [], [], 30)
        response = http.client.HTTPResponse(answered[0])
        response.begin()
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        assert b"bytes are being answered; try again later" in response.read()
    responses = (server.post(V1, {"instances": NESTED}) for _ in range(1_000))
    assert any(response.status == 200 for response in responses)


def test_the_best_classes_come_on_request_in_both_protocols(server: Server) -> None:
    parameters = {"parameters": {"top_k": 2}}
    rising = np.arange(16).reshape(1, 1, 4, 4).tolist()
    (answer,) = server.post(V1, {"instances": rising} | parameters).json()["predictions"]
    assert [each["class"] for each in answer["top"]] == [3, 2]
    assert answer["top"][0] == {k: answer[k] for k in ("class", "label", "score")}
    tensors = server.post(V2, v2(data=rising) | parameters).json()["outputs"]
    assert [t["data"] for t in tensors[:2]] == [[3, 2], ["three", "two"]]
    assert [t["shape"] for t in tensors] == [[1, 2]] * 3


@pytest.mark.parametrize("top", [0, 5, "1", True, None])
def test_more_classes_than_there_are_is_the_clients_fault(server: Server, top: Any) -> None:
    for path, body in ((V1, {"instances": NESTED}), (V2, v2())):
        response = server.post(path, body | {"parameters": {"top_k": top}})
        assert response.status == 400
        assert "parameters.top_k: must be a whole number from 1 to 4" in response.json()["error"]


def test_a_request_that_has_no_time_is_told_to_come_back(server: Server) -> None:
    for header in ("x_request_timeout_ms", "x_envoy_expected_rq_timeout_ms"):
        assert server.post(V1, {"instances": NESTED}, **{header: "60000"}).status == 200
        refused = server.post(V1, {"instances": NESTED}, **{header: "soon"})
        assert refused.status == 400
        assert "is not a whole number of milliseconds from 1 to 3600000" in refused.json()["error"]


def test_a_body_that_does_not_come_in_time_is_not_waited_for(server: Server) -> None:
    head = f"POST {V1} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += "x-request-timeout-ms: 50\r\ncontent-length: 9\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(head.encode())
        response = http.client.HTTPResponse(client)
        response.begin()
        assert response.status == 408
        assert b"did not come before the request's deadline" in response.read()


@pytest.mark.parametrize("offer", ["h2c", "websocket"])
def test_a_client_that_offers_another_protocol_is_answered_in_http(
    server: Server, offer: str
) -> None:
    body = json.dumps({"instances": NESTED})
    headers = {"connection": "Upgrade, HTTP2-Settings", "upgrade": offer, "http2-settings": "AAA"}
    headers |= {"content-type": "application/json"}
    for chunked in (False, True):
        sent: Any = [body[:9].encode(), body[9:].encode()] if chunked else body
        response = server.http.request("POST", V1, body=sent, headers=headers, chunked=chunked)
        assert response.status == 200, response.data
        assert response.json()["predictions"][0]["class"] == 2
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        text = f"POST {V1} HTTP/1.1\r\nhost: x\r\n{head}content-length: {len(body)}\r\n\r\n{body}"
        for parts in ((text[:30], text[30:-20], text[-20:]), (text,)):
            for part in parts:
                client.sendall(part.encode())
                time.sleep(0.05)
            answer = http.client.HTTPResponse(client)
            answer.begin()
            assert answer.status == 200
            answer.read()


@pytest.mark.slow
def test_many_clients_at_once_are_all_answered(server: Server) -> None:
    statuses: list[int] = []

    def client() -> None:
        statuses.extend(server.post(V1, {"instances": NESTED}).status for _ in range(10))

    clients = [threading.Thread(target=client) for _ in range(8)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    assert statuses == [200] * 80
