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
from pathlib import Path
from typing import Any

import pytest
from harness.held import Clock
from harness.model_server import Answer, ModelServer, Object, digits
from harness.predict_step import Step

from kfp_pytorch.launcher.errors import InputError, StepError
from kfp_pytorch.launcher.kserve.predict.exchange import NoAnswer, WrongAnswers

SAMPLES = [{"instance": n, "prediction": n} for n in (3, 1)]


def test_the_models_samples_are_asked_and_reported(ask: Step, server: ModelServer) -> None:
    outputs = ask(SAMPLES)
    assert outputs.correct == 1.0
    assert json.loads(outputs.sample_prediction) == {"class": 3, "label": "3", "score": 0.9}
    assert server.bodies == [{"instances": [3, 1]}]
    assert ask.url in ask.report
    assert "<td>1</td><td><code>1</code></td>" in ask.report
    assert "{&quot;class&quot;: 1, &quot;label&quot;: &quot;1&quot;, &quot;score&quot;: 0.9}" in (
        ask.report
    )


def test_given_requests_beat_the_samples(ask: Step, server: ModelServer) -> None:
    both = [{"instance": 5, "prediction": 5}, {"instances": [7, 8], "predictions": [7, 8]}]
    ask(SAMPLES, requests=both)
    assert server.bodies == [{"instances": [5, 7, 8]}]


def test_many_requests_go_some_at_a_time_and_keep_their_order(
    ask: Step, server: ModelServer
) -> None:
    numbers = list(range(70))
    ask(requests=[{"instances": numbers, "predictions": numbers}])
    assert [len(body["instances"]) for body in server.bodies] == [32, 32, 6]


def test_wrong_answers_fail_the_step_and_say_which(ask: Step, tmp_path: Path) -> None:
    wrong = [{"instance": n, "prediction": n % 4} for n in range(10)]
    message = ask.fails(WrongAnswers, wrong)
    assert "6 of 10 answers are wrong." in message
    assert 'Request 4: expected 0, got {"class": 4' in message
    assert "and 1 more" in message
    assert (tmp_path / "out" / "predictions").exists()


def test_a_route_that_comes_later_is_waited_for(ask: Step, server: ModelServer) -> None:
    server.first = [Answer(404, b"no route"), Answer(404), Answer(503, b"no upstream")]
    ask(SAMPLES)
    assert len(server.bodies) == 4


def test_a_server_that_goes_away_for_a_moment_after_long_is_waited_for_too(
    ask: Step, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock().install(monkeypatch, "kserve.predict.sending")
    numbers = list(range(40))

    def slowly(path: str, body: Object) -> Answer:
        if len(server.bodies) == 1:
            clock.ahead += 70.0
            server.first = [Answer(503, b"one moment")]
        return digits(path, body)

    server.respond = slowly
    ask(requests=[{"instances": numbers, "predictions": numbers}], ready_timeout=60)
    assert len(server.bodies) == 3


def test_a_server_that_says_it_is_not_ready_is_waited_for(ask: Step, server: ModelServer) -> None:
    server.first = [
        Answer(400, b'{"error": "Model with name digits is not ready."}'),
        Answer(500, b"Not Ready"),
    ]
    ask(SAMPLES)
    assert len(server.bodies) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 413, 422, 500, 302])
def test_a_refusal_is_not_asked_again(ask: Step, server: ModelServer, status: int) -> None:
    server.first = [Answer(status, b'{"error": "instances[0]: expected a list"}')]
    message = ask.fails(NoAnswer, SAMPLES)
    assert f"refused the request: {status}" in message
    assert "instances[0]: expected a list" in message
    assert ("cluster_url" in message) == (status in (401, 403, 302))
    assert len(server.bodies) == 1


def test_a_server_that_stays_away_ends_the_step_with_the_last_answer(
    ask: Step, server: ModelServer
) -> None:
    server.first = [Answer(503, b"no upstream")] * 100
    message = ask.fails(NoAnswer, SAMPLES, ready_timeout=1)
    assert "did not answer within 1 s (ready_timeout)" in message
    assert "503 no upstream" in message


def test_an_answer_that_trickles_in_is_given_up_within_the_time_of_one_request(
    ask: Step, server: ModelServer
) -> None:
    server.first = [Answer(200, [b"{"] * 20, pause_s=0.2)] * 2
    started = time.monotonic()
    message = ask.fails(NoAnswer, SAMPLES, ready_timeout=1, request_timeout=1)
    assert "did not answer within 1 s" in message
    assert "took over 1 s" in message or "Read timed out" in message
    assert "request_timeout" in message.splitlines()[-1]
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("depth", [600, 100_000])
def test_an_answer_or_a_sample_that_is_nested_without_end_is_told_of(
    ask: Step, server: ModelServer, tmp_path: Path, depth: int
) -> None:
    nested = "[" * depth + "]" * depth
    server.first = [Answer(200, f'{{"predictions": [{nested}, 1]}}'.encode())]
    ask.fails(WrongAnswers, SAMPLES)
    (tmp_path / "model").write_text(f'{{"samples": {nested}}}')
    assert "There is nothing to ask" in ask.fails(InputError)


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
    ask: Step, server: ModelServer, status: int, body: bytes, advice: str
) -> None:
    server.first = [Answer(status, body)] * 100
    message = ask.fails(StepError, SAMPLES, ready_timeout=0)
    assert advice in message.splitlines()[-1]


def test_a_server_without_tls_is_told_from_one_that_is_away(ask: Step, server: ModelServer) -> None:
    url = ask.url.replace("http://", "https://")
    message = ask.fails(NoAnswer, SAMPLES, url=url, ready_timeout=0)
    assert message.endswith("begin url with http://.")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_a_certificate_that_is_not_trusted_is_told_with_the_url_that_needs_none(
    ask: Step, tmp_path: Path
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
        message = ask.fails(NoAnswer, SAMPLES, url=url, ready_timeout=0)
        serving.join()
    assert "does not trust the server's certificate" in message.splitlines()[-1]


def test_a_name_that_nobody_knows_is_told_with_the_url_that_pods_reach(ask: Step) -> None:
    url = "http://digits.invalid/v1/models/digits:predict"
    assert "`cluster_url`" in ask.fails(NoAnswer, SAMPLES, url=url, ready_timeout=0)


def test_a_name_that_only_pods_know_is_told_with_the_command_that_forwards_its_port(
    ask: Step,
) -> None:
    url = "http://digits-predictor.team.svc.cluster.local/v1/models/digits:predict"
    message = ask.fails(NoAnswer, SAMPLES, url=url, ready_timeout=0)
    assert "`kubectl port-forward -n team service/digits-predictor 8080:80`" in message
    assert "http://localhost:8080/v1/models/digits:predict" in message


def test_words_that_are_no_text_are_written_as_such(
    ask: Step, server: ModelServer, tmp_path: Path
) -> None:
    answers = [{"class": 3, "label": "\udcff"}, {"class": 1}]
    server.first = [Answer(200, json.dumps({"predictions": answers}).encode())]
    assert json.loads(ask(SAMPLES).sample_prediction)["label"] == "\udcff"
    assert "\\udcff" in ask.report


def test_a_refused_connection_is_an_answer_that_may_yet_come(ask: Step) -> None:
    url = "http://127.0.0.1:9/v1/models/digits:predict"
    message = ask.fails(NoAnswer, SAMPLES, url=url, ready_timeout=0)
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
def test_an_answer_of_another_form_is_wrong(ask: Step, server: ModelServer, body: bytes) -> None:
    server.first = [Answer(200, body)]
    ask.fails(WrongAnswers, SAMPLES)


def test_an_empty_answer_is_said_to_be_so(ask: Step, server: ModelServer) -> None:
    server.first = [Answer(200, b"")]
    message = ask.fails(WrongAnswers, SAMPLES)
    assert message == 'The answer has no "predictions": it is empty'


@pytest.mark.parametrize(
    "said",
    [b"", b"garbage\r\n\r\n", b'HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"pred', None],
    ids=["reset", "garbage", "cut", "silence"],
)
def test_a_server_that_breaks_off_is_asked_until_the_time_is_over(
    ask: Step, said: bytes | None
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
        message = ask.fails(NoAnswer, SAMPLES, url=url, ready_timeout=1, request_timeout=1)
        assert "did not answer within 1 s (ready_timeout)" in message
        listening.shutdown(socket.SHUT_RDWR)
    for connection in connections:
        connection.close()
    assert connections


def test_headers_are_sent(ask: Step, server: ModelServer) -> None:
    host = "digits.default.example.com"
    ask(SAMPLES, headers={"Host": host, "X-Number": 3.0, "Authorization": "Bearer token\n"})
    assert server.headers[-1]["Authorization"] == "Bearer token"
    assert server.headers[-1]["Host"] == "digits.default.example.com"
    assert server.headers[-1]["X-Number"] == "3"


@pytest.mark.parametrize("samples", [None, [], "none", [{"instance": 1}]])
def test_nothing_to_ask_is_an_error_with_a_way_out(ask: Step, samples: Any) -> None:
    assert "Give `requests`" in ask.fails(InputError, samples)
