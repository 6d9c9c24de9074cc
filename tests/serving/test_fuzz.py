"""Hundreds of random requests that nobody would send: none is answered as the server's fault."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
import urllib3
from harness.memory import memory_growth

V1 = "/v1/models/digits:predict"
V2 = "/v2/models/digits/infer"
EXPLAIN = "/v1/models/digits:explain"
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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_no_odd_request_is_the_servers_fault_and_memory_stays(server: Any, seed: int) -> None:
    choose = random.Random(seed)
    assert server.post(V1, GOOD).status == 200
    statuses = []
    with memory_growth(server.process.pid) as grown:
        for _ in range(REQUESTS):
            path, good = choose.choice([(V1, GOOD), (V2, {"inputs": [TENSOR]}), (EXPLAIN, GOOD)])
            path = (
                path if choose.random() < 0.9 else path + choose.choice(["/", "x", "%00", "?a=b"])
            )
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
    # Captum among it, which is imported when it is first asked for.
    assert grown() < 250 * 2**20


def operations(server: Any) -> Any:
    schemathesis = pytest.importorskip("schemathesis")
    document = server.http.request("GET", "/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=f"http://127.0.0.1:{server.port}")
    return [found.ok() for found in schema.get_all_operations()]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
def test_what_schemathesis_makes_of_the_openapi_document_is_answered_as_it_says(
    server: Any, mode: str
) -> None:
    statuses: Counter[int] = Counter()
    with memory_growth(server.process.pid) as grown:
        for operation in operations(server):
            has_body = operation.method == "post"
            if mode == "NEGATIVE" and not has_body and "{" not in operation.path:
                continue  # nothing about it can be wrong
            ask(operation, mode, REQUESTS // 5 if has_body else 10, statuses)
    assert sum(statuses.values()) >= REQUESTS / 2
    assert set(statuses) <= {200, 400, 404, 408, 413, 415, 503}
    assert server.post(V1, GOOD).status == 200
    assert grown() < 250 * 2**20


def ask(operation: Any, mode: str, examples: int, statuses: Counter[int]) -> None:
    import schemathesis
    from hypothesis import HealthCheck, given, settings

    strategy = operation.as_strategy(generation_mode=schemathesis.GenerationMode[mode])

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def run(case: Any) -> None:
        response = case.call(timeout=60)
        statuses[response.status_code] += 1
        if response.status_code == 503:
            assert response.headers["retry-after"] == "1"
        elif response.status_code >= 400:
            assert response.json().keys() == {"error"}, response.text

    run()
