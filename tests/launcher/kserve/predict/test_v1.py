"""Requests with known answers, against an HTTP server that answers as it is told."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from harness.held import Clock

from kfp_pytorch.launcher.errors import InputError, StepError
from kfp_pytorch.launcher.kserve.predict.exchange import NoAnswer, WrongAnswers
from kfp_pytorch.launcher.steps.kserve_predict import Outputs, run

Object = dict[str, Any]


@dataclass
class ModelServer:
    """Answers `class` with the instance's own number, after the answers in `first`.

    Attributes:
        first: (status, body) pairs that come first, one a request.
        pause_s: Seconds between the bytes of an answer; 0 sends it at once.
        bodies: The bodies of all requests.
        headers: The headers of the last request.
    """

    url: str = ""
    first: list[tuple[int, bytes]] = field(default_factory=list)
    bodies: list[Object] = field(default_factory=list)
    headers: Object = field(default_factory=dict)
    pause_s: float = 0.0

    def answer(self, body: Object, headers: Object) -> tuple[int, bytes]:
        self.bodies.append(body)
        self.headers = headers
        if self.first:
            return self.first.pop(0)
        answers = [{"class": i, "label": str(i), "score": 0.9} for i in body["instances"]]
        return 200, json.dumps({"predictions": answers}).encode()


@pytest.fixture
def server() -> Iterator[ModelServer]:
    model = ModelServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, data = model.answer(body, dict(self.headers))
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            for piece in [data[i : i + 1] for i in range(len(data))] if model.pause_s else [data]:
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(piece)
                time.sleep(model.pause_s)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    model.url = f"http://127.0.0.1:{http.server_port}/v1/models/digits:predict"
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield model
    http.shutdown()
    http.server_close()
    thread.join()


@dataclass
class Artifact:
    path: str


@pytest.fixture
def ask(server: ModelServer, tmp_path: Path) -> Callable[..., Outputs]:
    """Runs the step with samples in the Model's content, or none."""

    def new(samples: Any = None, **inputs: Any) -> Outputs:
        model = tmp_path / "model"
        if samples is not None:
            model.write_text(json.dumps({"model": {}, "samples": samples}))
        given = {"url": server.url} | inputs
        return run(Artifact(str(model)), Artifact(str(tmp_path / "out" / "predictions")), **given)

    return new


Ask = Callable[..., Outputs]
SAMPLES = [{"instance": n, "prediction": n} for n in (3, 1)]


def failure(kind: type[StepError], call: Callable[[], Any]) -> str:
    with pytest.raises(kind) as failed:
        call()
    return failed.value.message


def test_the_models_samples_are_asked_and_reported(
    ask: Ask, server: ModelServer, tmp_path: Path
) -> None:
    outputs = ask(SAMPLES)
    assert outputs.correct == 1.0
    assert json.loads(outputs.sample_prediction) == {"class": 3, "label": "3", "score": 0.9}
    assert server.bodies == [{"instances": [3, 1]}]
    shown = (tmp_path / "out" / "predictions").read_text()
    assert server.url in shown
    assert '| 1 | `1` | `{"class": 1, "label": "1", "score": 0.9}` |' in shown


def test_given_requests_beat_the_samples(ask: Ask, server: ModelServer) -> None:
    both = [{"instance": 5, "prediction": 5}, {"instances": [7, 8], "predictions": [7, 8]}]
    ask(SAMPLES, requests=both)
    assert server.bodies == [{"instances": [5, 7, 8]}]


def test_many_requests_go_some_at_a_time_and_keep_their_order(
    ask: Ask, server: ModelServer
) -> None:
    numbers = list(range(70))
    ask(requests=[{"instances": numbers, "predictions": numbers}])
    assert [len(body["instances"]) for body in server.bodies] == [32, 32, 6]


def test_wrong_answers_fail_the_step_and_say_which(ask: Ask, tmp_path: Path) -> None:
    wrong = [{"instance": n, "prediction": n % 4} for n in range(10)]
    message = failure(WrongAnswers, lambda: ask(wrong))
    assert "6 of 10 answers are wrong." in message
    assert 'Request 4: expected 0, got {"class": 4' in message
    assert "and 1 more" in message
    assert (tmp_path / "out" / "predictions").exists()


def test_a_route_that_comes_later_is_waited_for(ask: Ask, server: ModelServer) -> None:
    server.first = [(404, b"no route"), (404, b""), (503, b"no upstream")]
    ask(SAMPLES)
    assert len(server.bodies) == 4


def test_a_server_that_goes_away_for_a_moment_after_long_is_waited_for_too(
    ask: Ask, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock().install(monkeypatch, "kserve.predict.sending")
    numbers = list(range(40))
    answer = server.answer

    def slowly(body: Object, headers: Object) -> tuple[int, bytes]:
        if len(server.bodies) == 1:
            server.first = [(503, b"one moment")]
        elif not server.bodies:
            clock.ahead += 70.0
        return answer(body, headers)

    monkeypatch.setattr(server, "answer", slowly)
    ask(requests=[{"instances": numbers, "predictions": numbers}], ready_timeout=60)
    assert len(server.bodies) == 3


def test_a_server_that_says_it_is_not_ready_is_waited_for(ask: Ask, server: ModelServer) -> None:
    server.first = [
        (400, b'{"error": "Model with name digits is not ready."}'),
        (500, b"Not Ready"),
    ]
    ask(SAMPLES)
    assert len(server.bodies) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 413, 422, 500, 302])
def test_a_refusal_is_not_asked_again(ask: Ask, server: ModelServer, status: int) -> None:
    server.first = [(status, b'{"error": "instances[0]: expected a list"}')]
    message = failure(NoAnswer, lambda: ask(SAMPLES))
    assert f"refused the request: {status}" in message
    assert "instances[0]: expected a list" in message
    assert ("cluster_url" in message) == (status in (401, 403, 302))
    assert len(server.bodies) == 1


def test_a_server_that_stays_away_ends_the_step_with_the_last_answer(
    ask: Ask, server: ModelServer
) -> None:
    server.first = [(503, b"no upstream")] * 100
    message = failure(NoAnswer, lambda: ask(SAMPLES, ready_timeout=1))
    assert "did not answer within 1 s (ready_timeout)" in message
    assert "503 no upstream" in message


def test_an_answer_that_trickles_in_is_given_up_within_the_time_of_one_request(
    ask: Ask, server: ModelServer
) -> None:
    server.pause_s, started = 0.2, time.monotonic()
    message = failure(NoAnswer, lambda: ask(SAMPLES, ready_timeout=1, request_timeout=1))
    assert "did not answer within 1 s" in message
    assert "the answer took over 1 s" in message
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("depth", [600, 100_000])
def test_an_answer_or_a_sample_that_is_nested_without_end_is_told_of(
    ask: Ask, server: ModelServer, tmp_path: Path, depth: int
) -> None:
    nested = "[" * depth + "]" * depth
    server.first = [(200, f'{{"predictions": [{nested}, 1]}}'.encode())]
    failure(WrongAnswers, lambda: ask(SAMPLES))
    (tmp_path / "model").write_text(f'{{"samples": {nested}}}')
    assert "There is nothing to ask" in failure(InputError, ask)


@pytest.mark.parametrize(
    ("status", "body", "advice"),
    [
        (308, b"", "from http to https"),
        (404, b"no route", "the header Host"),
        (503, b"no upstream", "kubectl logs"),
        (500, b"cannot add tensors", "kubectl logs"),
        (200, b"<html>log in</html>", "wants a login"),
    ],
)
def test_an_answer_that_is_none_comes_with_what_to_do(
    ask: Ask, server: ModelServer, status: int, body: bytes, advice: str
) -> None:
    server.first = [(status, body)] * 100
    message = failure(StepError, lambda: ask(SAMPLES, ready_timeout=0))
    assert advice in message.splitlines()[-1]


def test_a_server_without_tls_is_told_from_one_that_is_away(ask: Ask, server: ModelServer) -> None:
    url = server.url.replace("http://", "https://")
    message = failure(NoAnswer, lambda: ask(SAMPLES, url=url, ready_timeout=0))
    assert message.endswith("begin url with http://.")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_a_certificate_that_is_not_trusted_is_told_with_the_url_that_needs_none(
    ask: Ask, tmp_path: Path
) -> None:
    made = tmp_path / "made.pem"
    options = (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost"
    )
    command = ["openssl", *options.split(), "-keyout", made, "-out", tmp_path / "certificate.pem"]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate.pem", made)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with (
                contextlib.suppress(OSError),
                context.wrap_socket(listening.accept()[0], server_side=True) as connection,
            ):
                connection.recv(1)

        serving = threading.Thread(target=serve)
        serving.start()
        url = f"https://127.0.0.1:{listening.getsockname()[1]}/v1/models/digits:predict"
        message = failure(NoAnswer, lambda: ask(SAMPLES, url=url, ready_timeout=0))
        serving.join()
    assert "does not trust the server's certificate" in message.splitlines()[-1]


def test_a_name_that_nobody_knows_is_told_with_the_url_that_pods_reach(ask: Ask) -> None:
    url = "http://digits.invalid/v1/models/digits:predict"
    assert "`cluster_url`" in failure(NoAnswer, lambda: ask(SAMPLES, url=url, ready_timeout=0))


def test_a_name_that_only_pods_know_is_told_with_the_command_that_forwards_its_port(
    ask: Ask,
) -> None:
    url = "http://digits-predictor.team.svc.cluster.local/v1/models/digits:predict"
    message = failure(NoAnswer, lambda: ask(SAMPLES, url=url, ready_timeout=0))
    assert "`kubectl port-forward -n team service/digits-predictor 8080:80`" in message
    assert "http://localhost:8080/v1/models/digits:predict" in message


def test_words_that_are_no_text_are_written_as_such(
    ask: Ask, server: ModelServer, tmp_path: Path
) -> None:
    answers = [{"class": 3, "label": "\udcff"}, {"class": 1}]
    server.first = [(200, json.dumps({"predictions": answers}).encode())]
    assert json.loads(ask(SAMPLES).sample_prediction)["label"] == "\udcff"
    assert "\\udcff" in (tmp_path / "out" / "predictions").read_text(encoding="utf-8")


def test_a_refused_connection_is_an_answer_that_may_yet_come(ask: Ask) -> None:
    url = "http://127.0.0.1:9/v1/models/digits:predict"
    message = failure(NoAnswer, lambda: ask(SAMPLES, url=url, ready_timeout=0))
    assert "Connection refused" in message


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b'{"outputs": []}',
        b'{"predictions": 5}',
        b'{"predictions": [1]}',
        b"[" * 100_000,
    ],
    ids=lambda body: str(body[:20]),
)
def test_an_answer_of_another_form_is_wrong(ask: Ask, server: ModelServer, body: bytes) -> None:
    server.first = [(200, body)]
    failure(WrongAnswers, lambda: ask(SAMPLES))


def test_an_empty_answer_is_said_to_be_so(ask: Ask, server: ModelServer) -> None:
    server.first = [(200, b"")]
    message = failure(WrongAnswers, lambda: ask(SAMPLES))
    assert message == 'The answer has no "predictions": it is empty'


@pytest.mark.parametrize(
    "said",
    [b"", b"garbage\r\n\r\n", b'HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"pred', None],
    ids=["reset", "garbage", "cut", "silence"],
)
def test_a_server_that_breaks_off_is_asked_until_the_time_is_over(
    ask: Ask, said: bytes | None
) -> None:
    connections = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connections.append(listening.accept()[0])
                    connections[-1].recv(65536)
                    if said is not None:
                        connections[-1].sendall(said)
                        connections[-1].close()

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1/models/digits:predict"
        call = partial(ask, SAMPLES, url=url, ready_timeout=1, request_timeout=1)
        assert "did not answer within 1 s (ready_timeout)" in failure(NoAnswer, call)
        listening.shutdown(socket.SHUT_RDWR)
    for connection in connections:
        connection.close()
    assert connections


def test_headers_are_sent(ask: Ask, server: ModelServer) -> None:
    host = "digits.default.example.com"
    ask(SAMPLES, headers={"Host": host, "X-Number": 3.0, "Authorization": "Bearer token\n"})
    assert server.headers["Authorization"] == "Bearer token"
    assert server.headers["Host"] == "digits.default.example.com"
    assert server.headers["X-Number"] == "3"


@pytest.mark.parametrize("samples", [None, [], "none", [{"instance": 1}]])
def test_nothing_to_ask_is_an_error_with_a_way_out(ask: Ask, samples: Any) -> None:
    assert "Give `requests`" in failure(InputError, lambda: ask(samples))
