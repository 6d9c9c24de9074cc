"""Requests that nobody would send, hundreds of them: none is answered as the server's fault."""

from __future__ import annotations

import json
import random
import resource
from pathlib import Path
from typing import Any

import pytest
import urllib3

V1 = "/v1/models/digits:predict"
V2 = "/v2/models/digits/infer"
GOOD = {"instances": [[[[1] * 4] * 4]]}
TENSOR = {"name": "image", "shape": [1, 1, 4, 4], "datatype": "FP32", "data": [1] * 16}
REQUESTS = 500
ODD: list[Any] = [
    *(None, True, False, 0, -1, 1.5, 2**53, 2**63, 2**64, 10**30, 1e308, "", "x", "\0", "é" * 99),
    *([], {}, [[]], [{}], [None], [[1]], {"b64": ""}, {"b64": "AAAA"}, {"data": []}),
    *("FP32", "BYTES", "INT64", [1, 1, 4, 4], [-1], [0], [2**40] * 4, ["1"], [[[[1] * 4] * 4]] * 3),
]
WRONG_HEADERS = [
    {"content-type": "text/plain"},
    {"content-type": "application/octet-stream"},
    {"inference-header-content-length": "5"},
    {"inference-header-content-length": "-1"},
    {"inference-header-content-length": "99999999999999999999"},
    {"content-encoding": "gzip"},
    {"x-request-timeout-ms": "0"},
    {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "x", "ce-type": "y"},
    {"accept": "\x7f", "x-odd": "é".encode("latin-1").decode("latin-1")},
    {"expect": "100-continue"},
]


def mutated(value: Any, choose: random.Random) -> Any:
    """A value with something else somewhere in it."""
    if choose.random() < 0.25 or not isinstance(value, dict | list) or not value:
        return choose.choice(ODD)
    if isinstance(value, dict):
        key = choose.choice([*value, "parameters", "id", "outputs"])
        if choose.random() < 0.2:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: mutated(value.get(key), choose)}
    at = choose.randrange(len(value))
    return [*value[:at], mutated(value[at], choose), *value[at + 1 :]]


def body_of(good: Any, choose: random.Random) -> bytes:
    text = json.dumps(mutated(good, choose)).encode()
    match choose.randrange(6):
        case 0:
            at = choose.randrange(len(text))
            return text[:at] + bytes([choose.randrange(256)]) + text[at + 1 :]
        case 1:
            return text[: choose.randrange(len(text))]
        case 2:
            return text.replace(b"1", choose.choice([b"NaN", b"1e999", b"-0", b"Infinity"]), 1)
    return text


def memory_of(pid: int) -> int:
    """Resident bytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_no_odd_request_is_the_servers_fault_and_memory_stays(server: Any, seed: int) -> None:
    choose = random.Random(seed)
    assert server.post(V1, GOOD).status == 200
    before = memory_of(server.process.pid)
    statuses = []
    for _ in range(REQUESTS):
        path, good = choose.choice([(V1, GOOD), (V2, {"inputs": [TENSOR]})])
        path = path if choose.random() < 0.9 else path + choose.choice(["/", "x", "%00", "?a=b"])
        headers = {"content-type": "application/json"}
        if choose.random() < 0.2:
            headers |= choose.choice(WRONG_HEADERS)
        try:
            response = server.http.request(
                "POST", path, body=body_of(good, choose), headers=headers
            )
        except urllib3.exceptions.ProtocolError:
            continue  # a header that is none: the connection is closed
        statuses.append(response.status)
        assert response.status < 500, (path, response.data)
    assert {400, 404, 200} <= set(statuses)
    assert server.post(V1, GOOD).status == 200
    assert memory_of(server.process.pid) - before < 100 * 2**20


@pytest.mark.slow
def test_a_body_of_200_mb_is_refused_without_being_kept(server: Any) -> None:
    before = memory_of(server.process.pid)
    for path in (V1, V2, "/v2/nowhere"):
        chunks = (b" " * 2**20 for _ in range(200))
        try:
            response = server.http.request("POST", path, body=chunks, chunked=True)
            assert response.status in (404, 413)
        except urllib3.exceptions.HTTPError:
            pass  # the server answers and closes before all is sent
    assert server.post(V1, GOOD).status == 200
    assert memory_of(server.process.pid) - before < 50 * 2**20
