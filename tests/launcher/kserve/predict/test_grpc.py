"""gRPC: what is retried, what is not, and a step's image without its packages."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from harness.model_server import ModelServer
from harness.ports import free_port
from harness.predict_step import Step

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.kserve.predict import grpc_packages
from kfp_pytorch.launcher.kserve.predict.exchange import NoAnswer
from kfp_pytorch.launcher.kserve.predict.protocols import grpc_messages as messages

REQUESTS = [
    {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [0.5]}],
        "expected": {"y": [1.0]},
    }
]
TOKEN = "eyJhbGciOiJSUzI1NiJ9.e30.c2lnbmF0dXJl"


@dataclass
class Predictor:
    """Doubles its input, after the refusals in `first`.

    Attributes:
        metadata: That of each request, with its authority.
    """

    port: int
    first: list[tuple[grpc.StatusCode, str]] = field(default_factory=list)
    metadata: list[dict[str, str]] = field(default_factory=list)
    huge: bool = False

    def infer(self, body: bytes, context: Any) -> bytes:
        self.metadata.append({k: str(v) for k, v in context.invocation_metadata()})
        if self.first:
            context.abort(*self.first.pop(0))
        asked = messages.parse("ModelInferRequest", body)
        assert asked is not None
        answer = messages.new("ModelInferResponse")
        tensor = answer.outputs.add(name="y", datatype="FP32", shape=[1])
        tensor.contents.fp32_contents.append(1.0)
        if self.huge:
            answer.id = "x" * (65 << 20)
        return bytes(answer.SerializeToString())


@contextlib.contextmanager
def served(predictor: Predictor) -> Iterator[None]:
    method = grpc.unary_unary_rpc_method_handler(predictor.infer)
    handlers = grpc.method_handlers_generic_handler(
        "inference.GRPCInferenceService", {"ModelInfer": method}
    )
    options = [("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(2), options=options)
    server.add_generic_rpc_handlers([handlers])
    server.add_insecure_port(f"127.0.0.1:{predictor.port}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


@pytest.fixture
def predictor() -> Iterator[Predictor]:
    made = Predictor(free_port())
    with served(made):
        yield made


@pytest.fixture
def ask(predictor: Predictor, tmp_path: Path) -> Step:
    class Grpc(Step):
        def __call__(self, samples: Any = None, **inputs: Any) -> Any:
            given = {"protocol": "grpc", "model_name": "double", "requests": REQUESTS, **inputs}
            return super().__call__(samples, **given)

    return Grpc(f"http://127.0.0.1:{predictor.port}", tmp_path)


def test_headers_and_the_token_are_metadata_and_the_host_is_the_authority(
    ask: Step, predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KSERVE_TOKEN", TOKEN)
    ask(headers={"Host": "double.example.com", "X-Number": 3}, token_env="KSERVE_TOKEN")
    (sent,) = predictor.metadata
    assert sent["authorization"] == f"Bearer {TOKEN}"
    assert sent["x-number"] == "3"
    assert "host" not in sent


def test_a_server_that_is_not_there_yet_is_waited_for(ask: Step, predictor: Predictor) -> None:
    predictor.first = [
        (grpc.StatusCode.NOT_FOUND, "no such model"),
        (grpc.StatusCode.UNAVAILABLE, "no upstream"),
        (grpc.StatusCode.INTERNAL, "the model is not ready"),
    ]
    ask()
    assert "<td>OK</td><td>1</td>" in ask.report
    assert "<td>NOT_FOUND</td><td>1</td>" in ask.report


def test_a_server_that_starts_later_is_found(tmp_path: Path) -> None:
    late = Predictor(free_port())
    stop = threading.Event()

    def start() -> None:
        if not stop.wait(0.6):
            with served(late):
                stop.wait()

    thread = threading.Thread(target=start)
    thread.start()
    try:
        given = {"protocol": "grpc", "model_name": "double", "requests": REQUESTS}
        Step(f"http://127.0.0.1:{late.port}", tmp_path)(**given)
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "inputs[0].shape"),
        (grpc.StatusCode.UNAUTHENTICATED, "cluster_url"),
        (grpc.StatusCode.PERMISSION_DENIED, "cluster_url"),
        (grpc.StatusCode.UNIMPLEMENTED, "does not speak gRPC"),
        (grpc.StatusCode.INTERNAL, "kubectl logs"),
    ],
)
def test_a_refusal_is_not_asked_again(
    ask: Step, predictor: Predictor, code: grpc.StatusCode, words: str
) -> None:
    predictor.first = [(code, "inputs[0].shape is wrong")]
    message = ask.fails(NoAnswer)
    assert f"refused the request: {code.name}" in message
    assert words in message
    assert len(predictor.metadata) == 1


def test_a_token_that_a_server_echoes_is_not_shown(
    ask: Step, predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KSERVE_TOKEN", TOKEN)
    predictor.first = [(grpc.StatusCode.UNAUTHENTICATED, f"bad {TOKEN}")]
    message = ask.fails(NoAnswer, token_env="KSERVE_TOKEN")
    assert TOKEN not in message
    assert "bad ****" in message


@pytest.mark.slow
def test_an_answer_that_is_larger_than_any_is_refused(ask: Step, predictor: Predictor) -> None:
    predictor.huge = True
    message = ask.fails(NoAnswer)
    assert "larger than max" in message
    assert len(predictor.metadata) == 1


def test_a_server_of_http_1_is_told_from_one_that_is_away(ask: Step, server: ModelServer) -> None:
    message = ask.fails(NoAnswer, url=server.root, ready_timeout=0, request_timeout=5)
    assert "UNAVAILABLE" in message
    assert message.splitlines()[-1].startswith("What answers there does not speak gRPC")


def test_a_server_that_is_away_is_told_of_with_what_to_do(ask: Step) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    message = ask.fails(NoAnswer, url=url, ready_timeout=0)
    assert "Connection refused" in message
    assert "`cluster_url`" in message.splitlines()[-1]


@pytest.mark.parametrize("headers", [{"x-bin": "a"}, {"a!b": "c"}, {"x": "é"}])
def test_headers_that_are_no_metadata_are_refused(ask: Step, headers: dict[str, str]) -> None:
    assert "headers" in ask.fails(InputError, headers=headers)


def test_an_image_without_grpc_has_it_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    commands = []

    def pip(command: list[str], **_options: Any) -> Any:
        folder = Path(command[command.index("--target") + 1])
        (folder / "kfp_pytorch_no_such_package.py").write_text("found = True\n")
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(grpc_packages.subprocess, "run", pip)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert grpc_packages._imported("kfp_pytorch_no_such_package").found
    assert commands[0][-2:] == [*grpc_packages.PACKAGES]
    assert "Installing grpcio" in capfd.readouterr().out


@pytest.mark.slow
def test_an_image_without_grpc_and_without_an_index_is_told_how_to_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{free_port()}/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setattr(grpc_packages, "PACKAGES", ("kfp-pytorch-no-such-package",))
    with pytest.raises(grpc_packages.CannotInstall) as failed:
        grpc_packages._imported("kfp_pytorch_no_such_other")
    assert "--launcher image=" in failed.value.message
    assert "pip said: " in failed.value.message


def test_the_launchers_package_has_the_same_packages_as_an_extra() -> None:
    import tomllib

    project = Path(__file__).parents[4] / "launcher" / "pyproject.toml"
    extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    assert extras["grpc"] == [*grpc_packages.PACKAGES]
