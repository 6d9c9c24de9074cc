"""More clients at once than there is room for: memory and files are bounded, health is answered."""

from __future__ import annotations

import resource
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
import urllib3
from harness.memory import memory_growth
from harness.ports import free_port

# `import kserve` parses sys.argv.
_given, sys.argv = sys.argv, sys.argv[:1]
from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages  # noqa: E402

sys.argv = _given

V1 = "/v1/models/digits:predict"
SERVICE = "/inference.GRPCInferenceService"
MEBI = 2**20
# Of the predictor: (1000 - 128) / 2 connections of each protocol.
FILES = 1000
MOST = 436
LIMITED = f"""
import resource, runpy
resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES // 2}, {FILES}))
runpy.run_module("kfp_pytorch.serving", run_name="__main__")
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(started: Any, exported: Path) -> Any:
    port = free_port()
    running = started(exported, "--grpc_port", str(port), program=["-c", LIMITED])
    running.grpc_port = port
    running.wait_ready()
    return running


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as opened:
        yield opened
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_many(stack: ExitStack, port: int, count: int, sent: bytes) -> list[socket.socket]:
    clients = []
    for _ in range(count):
        client = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
        clients.append(client)
        try:
            client.sendall(sent)
        except OSError:
            continue  # closed by the server
    return clients


def files_of(server: Any) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def health(server: Any) -> int:
    """The status of readiness, over a connection of its own."""
    with urllib3.PoolManager(retries=False, timeout=30) as http:
        return http.request("GET", f"http://127.0.0.1:{server.port}/v2/health/ready").status


HEADS = {
    "nothing": b"",
    "half a head": f"POST {V1} HTTP/1.1\r\nhost: x\r\n".encode(),
    "a request": b"GET /v2 HTTP/1.1\r\nhost: x\r\n\r\n",
}


@pytest.mark.parametrize("sent", HEADS.values(), ids=HEADS)
def test_health_is_answered_beside_thousands_of_connections_that_wait(
    server: Any, stack: ExitStack, sent: bytes
) -> None:
    open_many(stack, server.port, 2000, sent)
    for _ in range(5):
        assert health(server) == 200
    assert files_of(server) < MOST + 100


def test_health_is_answered_beside_bodies_that_never_come(server: Any, stack: ExitStack) -> None:
    fields = "host: x\r\ncontent-type: application/json\r\ncontent-length: 9"
    clients = open_many(
        stack, server.port, 600, f"POST {V1} HTTP/1.1\r\n{fields}\r\n\r\n{{".encode()
    )
    assert health(server) == 200
    response = server.post(V1, {"instances": [[[[1] * 4] * 4]]})
    assert (response.status, response.headers["retry-after"]) == (503, "1")
    assert "requests are being answered; try again later" in response.json()["error"]
    # Those that came first are answered when their bodies come.
    clients[0].sendall(b"        ")
    assert clients[0].recv(100).startswith(b"HTTP/1.1 400 ")


def test_connections_of_grpc_are_bounded_too(server: Any, stack: ExitStack) -> None:
    channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}"))
    live = channel.unary_unary(f"{SERVICE}/ServerLive")
    assert live(b"", timeout=30)
    open_many(stack, server.grpc_port, 1000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert live(b"", timeout=30)
    assert health(server) == 200
    assert files_of(server) < MOST + 100


def request(size: int, rows: int) -> bytes:
    tensor = {"name": "image", "shape": [rows, 1, 4, 4], "datatype": "UINT8"}
    made = messages.ModelInferRequest(
        model_name="digits", inputs=[tensor], raw_input_contents=[bytes(size)]
    )
    return bytes(made.SerializeToString())


@pytest.mark.parametrize(("connections", "calls"), [(40, 1), (2, 20)])
def test_large_messages_at_once_take_bounded_memory_and_small_ones_are_answered(
    server: Any, stack: ExitStack, connections: int, calls: int
) -> None:
    own = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]

    def channel() -> Any:
        return stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", own))

    # Its shape is wrong: it is read, and takes no time of the model.
    large, small = request(31 * MEBI, 1), request(16, 1)
    infer = channel().unary_unary(f"{SERVICE}/ModelInfer")
    assert infer(small, timeout=30)
    senders = [channel().unary_unary(f"{SERVICE}/ModelInfer") for _ in range(connections)] * calls
    over, told, probed = threading.Event(), Counter[Any](), Counter[Any]()

    def send(sender: Any) -> None:
        with pytest.raises(grpc.RpcError) as raised:
            sender(large, timeout=120)
        told[raised.value.code()] += 1

    def probe() -> None:
        while not over.is_set():
            call = infer.future(small, timeout=60)
            probed[call.code()] += 1

    prober = threading.Thread(target=probe)
    with (
        memory_growth(server.process.pid) as grown,
        ThreadPoolExecutor(len(senders)) as threads,
    ):
        prober.start()
        list(threads.map(send, senders))
        list(threads.map(send, senders))
        over.set()
        prober.join()
    assert set(told) <= {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAVAILABLE}
    assert told[grpc.StatusCode.INVALID_ARGUMENT] >= 10
    assert probed[grpc.StatusCode.OK] > 0.9 * probed.total()
    assert grown() < 1200 * MEBI
