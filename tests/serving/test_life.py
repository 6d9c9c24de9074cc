"""How a predictor begins, what it outlives and how it ends."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
import urllib3
from harness.ports import free_port

from kfp_pytorch.serving import __main__ as serving
from kfp_pytorch.serving.options import parsed as arguments

pytestmark = pytest.mark.slow

V1 = "/v1/models/digits:predict"
V2 = "/v2/models/digits/infer"
NESTED = [[[[1] * 4] * 4]]
HASTY = [str(Path(__file__).with_name("hasty.py"))]


@dataclass(frozen=True)
class Ended:
    """A predictor that is over.

    Attributes:
        code: Its exit code.
        output: What it wrote.
        answer: What it answered after it was told to end.
    """

    code: int
    output: str
    answer: bytes


def head(path: str, length: int) -> bytes:
    fields = f"host: x\r\ncontent-type: application/json\r\ncontent-length: {length}"
    return f"POST {path} HTTP/1.1\r\n{fields}\r\n\r\n".encode()


def ended_in_flight(server: Any, number: signal.Signals) -> Ended:
    """Signals a predictor that has a part of a request, and sends it the rest."""
    body = json.dumps({"instances": NESTED}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(head(V1, len(body)) + body[:-1])
        # An answer on another connection shows that the server has read the first one's head.
        assert server.post(V1, body).status == 200
        server.process.send_signal(number)
        sock.sendall(body[-1:])
        answer = sock.recv(65_536)
    output, _ = server.process.communicate(timeout=120)
    return Ended(server.process.returncode, output, answer)


@pytest.fixture(scope="module")
def left(started: Any, exported: Path) -> Ended:
    """A predictor whose clients went away within a request, and that was then told to end."""
    server = started(exported)
    server.wait_ready()
    for path in (V1, V2):
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.sendall(head(path, 9) + b"{")
            assert server.post(V1, {"instances": NESTED}).status == 200
    return ended_in_flight(server, signal.SIGTERM)


def test_a_client_that_goes_away_is_not_logged_as_a_fault(left: Ended) -> None:
    assert "Traceback" not in left.output


def test_a_signal_lets_what_is_in_flight_be_answered(left: Ended) -> None:
    assert b"200 OK" in left.answer
    assert left.code == 0


@pytest.mark.slow
def test_a_pod_that_is_told_to_end_takes_requests_until_others_know_of_it(
    started: Any, exported: Path
) -> None:
    server = started(exported, "--stop_delay_s", "2")
    server.wait_ready()
    body = {"instances": NESTED}
    assert "connection" not in server.post(V1, body).headers
    server.process.send_signal(signal.SIGTERM)
    told, answered = time.monotonic(), 0
    with contextlib.suppress(urllib3.exceptions.NewConnectionError):
        while time.monotonic() < told + 30:
            response = server.post(V1, body)
            assert response.status == 200
            leaves = response.headers.get("connection") == "close"
            # The signal may arrive a moment later than the request.
            assert leaves or time.monotonic() < told + 1
            answered += leaves
            if leaves and time.monotonic() < told + 1:
                assert server.http.request("GET", "/v2/models/digits/ready").status == 503
                assert server.http.request("GET", "/v2/health/live").status == 200
            time.sleep(0.02)
    assert time.monotonic() > told + 2
    assert answered > 10
    output, _ = server.process.communicate(timeout=60)
    assert server.process.returncode == 0
    assert "Traceback" not in output


INFER = "/inference.GRPCInferenceService/ModelInfer"


def test_a_signal_lets_messages_of_grpc_come_and_ends_those_that_do_not(
    started: Any, exported: Path
) -> None:
    port = free_port()
    server = started(exported, "--grpc_port", str(port), program=HASTY)
    server.wait_ready()
    # A ModelInferRequest with the name of the model, and no input.
    message, told, over = b"\x0a\x06digits", threading.Event(), threading.Event()

    def sent(after: threading.Event) -> Iterator[bytes]:
        after.wait(60)
        yield message

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        late = channel.stream_unary(INFER).future(sent(told))
        never = channel.stream_unary(INFER).future(sent(over))
        # An answer to a later call shows that these have been begun.
        assert channel.unary_unary(INFER.replace("ModelInfer", "ServerLive"))(b"", timeout=30)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        told.set()
        assert late.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "takes one input named 'image'" in late.details()
        assert never.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
        over.set()
    output, _ = server.process.communicate(timeout=120)
    assert server.process.returncode == 0
    assert "Traceback" not in output


@pytest.mark.slow
def test_so_does_ctrl_c(started: Any, exported: Path) -> None:
    server = started(exported)
    server.wait_ready()
    ended = ended_in_flight(server, signal.SIGINT)
    assert b"200 OK" in ended.answer
    assert ended.code == 0
    assert "Traceback" not in ended.output


class ComparesAll(torch.nn.Module):
    """Makes a number for each four tokens of a text: for a long one there is no memory."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        fours = tokens.float()[:, :, None, None, None].expand(-1, -1, length, length, length)
        return fours.contiguous().flatten(1).mean(1, keepdim=True).repeat(1, 4)


LIMITED = """
import resource, runpy
resource.setrlimit(resource.RLIMIT_DATA, (3_000_000_000, 3_000_000_000))
runpy.run_module("kfp_pytorch.serving", run_name="__main__")
"""


@pytest.mark.slow
def test_a_request_that_memory_is_too_small_for_is_told_to_come_back(
    started: Any, write_export: Any, tmp_path: Path
) -> None:
    tokens = {"name": "tokens", "shape": [-1, -1], "datatype": "INT64"}
    folder = write_export(
        tmp_path,
        ComparesAll(),
        torch.zeros(2, 3, dtype=torch.int64),
        sizes={1: torch.export.Dim("length", min=1, max=10**6)},
        inputs=[tokens],
    )
    # The 6.4 GB that this needs are there on most machines; the container may not use them.
    server = started(folder, program=["-c", LIMITED])
    server.wait_ready()
    long = [1] * 200
    flat = tokens | {"shape": [1, len(long)], "data": long}
    for path, body in ((V1, {"instances": [long]}), (V2, {"inputs": [flat]})):
        response = server.post(path, body)
        assert (response.status, response.headers["retry-after"]) == (503, "1"), response.data
        assert "the predictor's memory is full; send fewer" in response.json()["error"]
        assert server.post(V1, {"instances": [[1, 2, 3]]}).status == 200
    server.process.send_signal(signal.SIGTERM)
    output, _ = server.process.communicate(timeout=120)
    assert "memory is full: [enforce fail at alloc_cpu.cpp" in output
    assert "Traceback" not in output


class ComputesLong(torch.nn.Module):
    """Takes long for a text of some thousand tokens, and no time for a short one."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        square = tokens.float()[:, :, None] * tokens.float()[:, None, :]
        for _ in range(20):
            square = torch.tanh(square @ square)
        return square.flatten(1).mean(1, keepdim=True).repeat(1, 4)


@pytest.mark.slow
def test_what_is_not_answered_when_the_drain_ends_is_told_to_come_back(
    started: Any, write_export: Any, tmp_path: Path
) -> None:
    tokens = {"name": "tokens", "shape": [-1, -1], "datatype": "INT64"}
    lengths = {1: torch.export.Dim("length", min=1, max=10**6)}
    example = torch.zeros(2, 3, dtype=torch.int64)
    folder = write_export(tmp_path, ComputesLong(), example, lengths, inputs=[tokens])
    server = started(folder, program=HASTY)
    server.wait_ready()
    body = json.dumps({"instances": [[1] * 5000]}).encode()
    with contextlib.ExitStack() as stack:
        clients = []
        for path in (V1, V2, V1):
            address = ("127.0.0.1", server.port)
            clients.append(stack.enter_context(socket.create_connection(address)))
            clients[-1].sendall(head(path, len(body)) + body[:-1])
        # An answer on another connection shows that the server has read the heads.
        assert server.post(V1, {"instances": [[1, 2]]}).status == 200
        server.process.send_signal(signal.SIGTERM)
        # The others never end.
        clients[-1].sendall(body[-1:])
        for client in clients:
            response = http.client.HTTPResponse(client)
            response.begin()
            assert (response.status, response.headers["retry-after"]) == (503, "1")
            assert b"the predictor is stopping" in response.read()
    output, _ = server.process.communicate(timeout=120)
    assert server.process.returncode == 0
    assert "Traceback" not in output


@pytest.mark.slow
def test_a_head_that_never_ends_is_given_up_and_an_idle_connection_is_not(
    started: Any, exported: Path
) -> None:
    server = started(exported, program=HASTY)
    server.wait_ready()
    address = ("127.0.0.1", server.port)
    with socket.create_connection(address) as idle, socket.create_connection(address) as slow:
        slow.sendall(b"GET /v2 HTTP/1.1\r\nhost: x\r\n")
        slow.settimeout(30)
        assert slow.recv(1000).startswith(b"HTTP/1.1 408 Request Timeout")
        assert slow.recv(1000) == b""
        idle.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert idle.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_an_empty_model_directory_ends_the_predictor_with_a_reason(
    started: Any, tmp_path: Path
) -> None:
    server = started(tmp_path)
    output, _ = server.process.communicate(timeout=120)
    assert server.process.returncode == 1
    assert "The directory is empty: is the storage URI right?" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("option", "value", "limits"),
    [("--http_port", "99999", "from 1 to 65535"), ("--max_body_mib", "0", "from 1 to 65536")],
)
def test_an_option_that_cannot_work_is_told_with_its_limits(
    capsys: pytest.CaptureFixture[str], option: str, value: str, limits: str
) -> None:
    with pytest.raises(SystemExit):
        arguments(["--model_name=digits", f"{option}={value}"])
    assert f"argument {option}: '{value}' is no whole number {limits}" in capsys.readouterr().err


def test_a_root_that_is_read_only_says_what_to_mount(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_found() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(sys, "argv", ["serving", "--model_name=digits"])
    monkeypatch.setattr(tempfile, "gettempdir", none_found)
    assert serving.main() == 1
    assert "'/tmp']; mount an emptyDir at /tmp, or set TMPDIR" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "seconds"),
    [([], 8), (["--http_host=127.0.0.1"], 0), (["--http_host=::1"], 0), (["--stop_delay_s=3"], 3)],
)
def test_only_on_loopback_nobody_has_to_hear_that_it_stops(given: list[str], seconds: int) -> None:
    assert arguments(["--model_name=digits", *given]).stop_delay_s == seconds


@pytest.mark.parametrize("name", ["", "a/b", "a b", "a:b"])
def test_a_name_that_no_url_can_have_is_refused(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with pytest.raises(SystemExit):
        arguments([f"--model_name={name}"])
    assert f"{name!r} has other than letters, digits" in capsys.readouterr().err


@pytest.mark.slow
def test_an_address_that_is_taken_ends_the_predictor_with_a_reason(
    started: Any, exported: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = started(exported, "--http_port", str(port))
        output, _ = server.process.communicate(timeout=120)
    assert server.process.returncode == 1
    assert output.splitlines()[-1].startswith(f"error: 127.0.0.1:{port} cannot be listened at")
