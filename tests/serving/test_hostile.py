"""Requests made to harm: larger, slower or other than they say. The predictor outlives them."""

from __future__ import annotations

import base64
import json
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

import grpc
import pytest
import urllib3
from harness.memory import memory_growth

V1 = "/v1/models/digits:predict"
V2 = "/v2/models/digits/infer"
GOOD = {"instances": [[[[1] * 4] * 4]]}
MEBI = 2**20

pytestmark = pytest.mark.slow


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *chunks: bytes) -> dict[str, str]:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    content = b"\x89PNG\r\n\x1a\n" + head + b"".join(chunks) + chunk(b"IEND", b"")
    return {"b64": base64.b64encode(content).decode()}


def deflated(size: int) -> bytes:
    """Compressed zeros."""
    packer = zlib.compressobj(9)
    parts = [packer.compress(bytes(MEBI)) for _ in range(size // MEBI)]
    return b"".join([*parts, packer.flush()])


# Functions: what packs them takes seconds, which nobody is to wait for who only collects the tests.
BOMBS: dict[str, Callable[[], dict[str, str]]] = {
    "a head of 3.6 gigapixels": lambda: png(60_000, 60_000, chunk(b"IDAT", zlib.compress(b"\0"))),
    "pixels of 400 MB for 16": lambda: png(4, 4, chunk(b"IDAT", deflated(400 * MEBI))),
    "a text of 400 MB": lambda: png(4, 4, chunk(b"zTXt", b"a\0\0" + deflated(400 * MEBI))),
    "a profile of 400 MB": lambda: png(4, 4, chunk(b"iCCP", b"a\0\0" + deflated(400 * MEBI))),
}


@pytest.mark.parametrize("make", BOMBS.values(), ids=BOMBS)
def test_an_image_that_unpacks_to_far_more_takes_no_memory(
    server: Any, make: Callable[[], dict[str, str]]
) -> None:
    image = make()
    assert server.post(V1, GOOD).status == 200
    with memory_growth(server.process.pid) as grown:
        for path, body in (
            (V1, {"instances": [image]}),
            (V2, {"inputs": [tensor("BYTES", [1], [image["b64"]])]}),
        ):
            response = server.post(path, body)
            assert response.status in (200, 400, 413), response.data
    assert grown() < 64 * MEBI
    assert server.post(V1, GOOD).status == 200


def tensor(datatype: str, shape: Any, data: Any = None, **parameters: Any) -> dict[str, Any]:
    made = {"name": "image", "shape": shape, "datatype": datatype}
    made |= {} if data is None else {"data": data}
    return made | ({"parameters": parameters} if parameters else {})


@pytest.mark.parametrize(
    ("stated", "sent", "reason"),
    [
        (64, 63, "states 64 bytes, and 63 follow"),
        (64, 0, "states 64 bytes, and 0 follow"),
        (63, 63, "63 bytes of data"),
        (0, 0, "0 bytes of data"),
        (2**63, 64, "bytes, and 64 follow"),
        (-1, 64, "-1 is no number of bytes"),
        ("64", 64, "'64' is no number of bytes"),
    ],
)
def test_a_binary_tensor_of_another_length_than_stated_is_refused(
    server: Any, stated: Any, sent: int, reason: str
) -> None:
    described = tensor("FP32", [1, 1, 4, 4], binary_data_size=stated)
    head = json.dumps({"inputs": [described]}).encode()
    length = {"inference_header_content_length": str(len(head))}
    response = server.post(V2, head + bytes(sent), **length)
    assert response.status == 400
    assert reason in response.json()["error"]


@pytest.mark.parametrize("chunked", [True, False])
def test_a_body_of_200_mb_is_refused_without_being_kept(server: Any, chunked: bool) -> None:
    with memory_growth(server.process.pid) as grown:
        for path in (V1, V2, "/v1/models/digits:explain", "/v2/nowhere"):
            address = f"http://127.0.0.1:{server.port}{path}"
            parts = (b" " * MEBI for _ in range(200))
            headers = {} if chunked else {"content-length": str(200 * MEBI)}
            with urllib3.PoolManager(retries=False, timeout=60) as http:
                try:
                    response = http.request(
                        "POST", address, body=parts, chunked=chunked, headers=headers
                    )
                except urllib3.exceptions.HTTPError:
                    continue  # the server answers and closes before all is sent
            assert response.status in (404, 413)
    assert server.post(V1, GOOD).status == 200
    assert grown() < 64 * MEBI


def test_a_message_of_200_mb_is_refused_without_being_kept(server: Any) -> None:
    options = [("grpc.max_send_message_length", -1)]
    with (
        memory_growth(server.process.pid) as grown,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options) as channel,
    ):
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as raised:
            call(bytes(200 * MEBI), timeout=60)
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert grown() < 64 * MEBI


def test_bodies_that_come_byte_by_byte_end_at_their_deadline_and_hold_nobody_up(
    server: Any,
) -> None:
    head = f"POST {V1} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += "content-length: 9000\r\nx-request-timeout-ms: 1500\r\n\r\n"
    clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
    for client in clients:
        client.sendall(head.encode() + b"{")
    over = threading.Event()

    def drip() -> None:
        while not over.wait(0.1):
            for client in clients:
                try:
                    client.sendall(b" ")
                except OSError:
                    continue

    dripping = threading.Thread(target=drip)
    dripping.start()
    began = time.monotonic()
    for _ in range(10):
        assert server.post(V1, GOOD).status == 200
    assert time.monotonic() - began < 5
    for client in clients:
        client.settimeout(30)
        assert client.recv(100).startswith(b"HTTP/1.1 408 ")
        client.close()
    over.set()
    dripping.join()


POST = b"POST %b HTTP/1.1\r\nhost: x\r\n"
GET = b"GET /v2 HTTP/1.1\r\nhost: x\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n"
HEADS: dict[str, bytes] = {
    "no http": b"\x16\x03\x01\x02\0\x01\0",
    "no version": b"GET /\r\n\r\n",
    "a header that is none": GET + b"no header\r\n\r\n",
    "a name with a blank": GET + b"a b: c\r\n\r\n",
    "a NUL": GET + b"a: \0\r\n\r\n",
    "a length that is none": POST + b"content-length: x\r\n\r\n",
    "a length below 0": POST + b"content-length: -1\r\n\r\n",
    "a length without end": POST + b"content-length: %b\r\n\r\n",
    "two lengths": POST + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "length and chunks": POST + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a chunk of no size": CHUNKED + b"\r\nz\r\n\r\n",
    "a million headers after a body": CHUNKED + b"\r\n0\r\n" + b"a: b\r\n" * 1_000_000 + b"\r\n",
    "a header of 50 MB after a body": CHUNKED + b"\r\n0\r\na: " + b"b" * 50_000_000 + b"\r\n\r\n",
    "ten thousand requests before an answer": (GET + b"\r\n") * 10_000,
    "a million headers": GET + b"a: b\r\n" * 1_000_000 + b"\r\n",
    "a header of 10 MB": GET + b"a: " + b"b" * 10_000_000 + b"\r\n\r\n",
    "a path of 10 MB": b"GET /" + b"b" * 10_000_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_a_head_that_is_none_harms_nobody_else(server: Any, head: bytes) -> None:
    sent = head.replace(b"%b", V1.encode(), 1).replace(b"%b", b"9" * 50)
    with memory_growth(server.process.pid) as grown:
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
            try:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                answer = client.recv(65_536)
            except OSError:
                answer = b""  # closed by the server before all was sent
        status = int(answer.split()[1]) if answer.startswith(b"HTTP/") else 0
        assert status < 500, answer
        assert server.post(V1, GOOD).status == 200
    assert grown() < 16 * MEBI
