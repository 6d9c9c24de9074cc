"""What a predictor answers while its model is busy, or fails."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harness.memory import memory_growth

V1 = "/v1/models/digits:predict"
BODY = {"instances": [[[[1] * 4] * 4]]}
PROGRAM = str(Path(__file__).with_name("steered.py"))

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("steered")


@pytest.fixture(scope="module")
def server(started: Any, exported: Path, folder: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEERED_BY", str(folder))
        running = started(exported, "--max_waiting", "2", program=[PROGRAM])
    running.wait_ready()
    return running


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as threads:
        yield threads


def state(server: Any) -> list[int]:
    paths = ("/v2/health/live", "/v2/health/ready", "/v2/models/digits/ready", "/v1/models/digits")
    return [server.http.request("GET", path).status for path in paths]


def until_waiting(server: Any, count: int) -> None:
    for _ in range(2000):
        page = server.http.request("GET", "/metrics").data.decode()
        if f'kfp_pytorch_queue_requests{{model_name="digits"}} {count}.0' in page:
            return
        time.sleep(0.005)
    raise AssertionError(f"there are not {count} requests in the queue")


def test_a_full_queue_sheds_load_and_is_quick_about_it_and_recovers(
    server: Any, folder: Path, pool: ThreadPoolExecutor
) -> None:
    (folder / "wait").touch()
    waiting = [pool.submit(server.post, V1, BODY)]
    while not (folder / "waits").exists():
        time.sleep(0.005)
    waiting += [pool.submit(server.post, V1, BODY) for _ in range(2)]
    until_waiting(server, 2)
    for response in pool.map(lambda _: server.post(V1, BODY), range(20)):
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        assert "2 requests wait for the model; try again later" in response.json()["error"]
    began = time.monotonic()
    assert state(server) == [200] * 4
    assert time.monotonic() - began < 1
    (folder / "wait").unlink()
    assert [each.result().status for each in waiting] == [200] * 3
    assert server.post(V1, BODY).status == 200


OVERLOAD_SECONDS = 8.0


async def flood(port: int, rate: float) -> Counter[int]:
    """Sends requests at a rate, answered or not. Returns how often there was which status."""
    body = json.dumps(BODY).encode()
    head = f"POST {V1} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json"
    request = f"{head}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    statuses: Counter[int] = Counter()

    async def send() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        statuses[int((await reader.readline()).split()[1])] += 1
        writer.close()

    began, sent = time.monotonic(), list[asyncio.Task[None]]()
    while (passed := time.monotonic() - began) < OVERLOAD_SECONDS:
        sent += [asyncio.create_task(send()) for _ in range(int(passed * rate) - len(sent))]
        await asyncio.sleep(0.01)
    await asyncio.gather(*sent)
    return statuses


def test_ten_times_the_requests_that_it_can_answer_are_shed_and_it_recovers(
    server: Any, folder: Path
) -> None:
    # Two that wait are a batch of 50 ms: 40 requests a second.
    (folder / "slow").touch()
    with memory_growth(server.process.pid) as grown:
        statuses = asyncio.run(flood(server.port, 400.0))
    (folder / "slow").unlink()
    assert set(statuses) == {200, 503}
    # It does not lose its capacity to those that it refuses.
    assert statuses[200] > 0.5 * 40 * OVERLOAD_SECONDS
    assert statuses[503] > statuses[200]
    assert grown() < 64 * 2**20
    assert state(server) == [200] * 4
    for _ in range(20):
        began = time.monotonic()
        assert server.post(V1, BODY).status == 200
        assert time.monotonic() - began < 1


def test_a_request_whose_deadline_has_come_is_answered_though_the_model_is_busy(
    server: Any, folder: Path
) -> None:
    (folder / "wait").touch()
    response = server.post(V1, BODY, x_request_timeout_ms="100")
    (folder / "wait").unlink()
    assert response.status == 503
    assert "the model had no time for it; try again later" in response.json()["error"]
    assert server.post(V1, BODY).status == 200


def test_a_device_that_fails_is_no_clients_fault_and_a_third_time_ends_liveness(
    server: Any, folder: Path
) -> None:
    (folder / "fail").touch()
    for count in range(1, 4):
        assert state(server) == [200] * 4
        response = server.post(V1, BODY)
        assert (response.status, response.headers["retry-after"]) == (503, "1"), count
        assert "the device is lost" in response.json()["error"]
    assert state(server) == [503] * 4
    (folder / "fail").unlink()
    assert server.post(V1, BODY).status == 200
    assert state(server) == [200] * 4


def computed(server: Any) -> float:
    """Seconds for which the server has had a CPU: other programs' time is none of its own."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_health_is_quick_while_large_bodies_are_read(server: Any) -> None:
    body = b'{"instances": [' + b",".join([b"[[[1,2,3,4]]]"] * 1_000_000) + b"]}"
    over = threading.Event()
    slowest = [0.0]

    def probe() -> None:
        while not over.is_set():
            began = computed(server)
            assert server.http.request("GET", "/v2/health/live").status == 200
            slowest[0] = max(slowest[0], computed(server) - began)

    prober = threading.Thread(target=probe)
    prober.start()
    responses = [server.post(V1, body) for _ in range(3)]
    over.set()
    prober.join()
    assert {response.status for response in responses} == {400}
    assert slowest[0] < 1.5
