"""Servers behind a gateway: tokens, certificates, paths, and what goes wrong on the way."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.model_server import Answer, ModelServer, digits, serving
from harness.predict_step import Step

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.kserve.predict.exchange import NoAnswer, WrongAnswers
from kfp_pytorch.launcher.kserve.predict.judging import TooSlow

SAMPLES = [{"instance": n, "prediction": n} for n in (3, 1)]
TOKEN = "eyJhbGciOiJSUzI1NiJ9.e30.c2lnbmF0dXJl"


def echoing(_path: str, _body: Any) -> Answer:
    return Answer(401, f'{{"error": "no such user: Bearer {TOKEN}"}}'.encode())


def test_a_token_of_a_secret_is_sent_and_shown_nowhere(
    ask: Step,
    server: ModelServer,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KSERVE_TOKEN", f"{TOKEN}\n")
    server.first = [Answer(503, f"upstream of {TOKEN}".encode())]
    ask(SAMPLES, token_env="KSERVE_TOKEN")
    assert server.headers[-1]["Authorization"] == f"Bearer {TOKEN}"
    server.respond = echoing
    message = ask.fails(NoAnswer, SAMPLES, token_env="KSERVE_TOKEN")
    assert "no such user: Bearer ****" in message
    out, err = capfd.readouterr()
    assert "503 upstream of\n  ****" in out
    assert TOKEN not in out + err + message + ask.report


def test_a_token_that_is_rotated_in_its_file_is_read_anew(
    ask: Step, server: ModelServer, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("first-token")

    def rotating(path: str, body: Any) -> Answer:
        file.write_text("second-token\n")
        return digits(path, body)

    server.respond = rotating
    ask(SAMPLES, token_file=str(file), batch_size=1)
    sent = [headers["Authorization"] for headers in server.headers]
    assert sent == ["Bearer first-token", "Bearer second-token"]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"token_env": "KSERVE_TOKEN"}, "kubernetes.use_secret_as_env"),
        ({"token_file": "/no/such/file"}, "cannot be read: No such file or directory"),
        ({"token_env": "A", "token_file": "/a"}, "set one of them"),
        ({"token_env": "A", "headers": {"authorization": "x"}}, "leave one of them out"),
        ({"ca_file": "/no/such/file"}, "ca_file"),
    ],
)
def test_a_token_or_certificate_that_is_not_there_is_told_of_before_a_request(
    ask: Step, server: ModelServer, inputs: dict[str, Any], words: str
) -> None:
    assert words in ask.fails(InputError, SAMPLES, **inputs)
    assert not server.bodies


@pytest.mark.parametrize("name", ["token_env", "token_file", "ca_file"])
def test_a_token_in_the_place_of_its_reference_is_refused_and_not_quoted(
    ask: Step, name: str
) -> None:
    message = ask.fails(InputError, SAMPLES, **{name: TOKEN})
    assert "kubernetes.use_secret_as" in message
    assert TOKEN not in message


def test_a_variable_that_holds_no_token_is_not_quoted(
    ask: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KSERVE_TOKEN", "two words")
    message = ask.fails(InputError, SAMPLES, token_env="KSERVE_TOKEN")
    assert "one word of ASCII" in message
    assert "two words" not in message


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[ModelServer]:
    """A server with a certificate of its own CA."""
    if shutil.which("openssl") is None:
        pytest.skip("makes its certificate with openssl")
    options = (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=gateway "
        "-addext subjectAltName=IP:127.0.0.1"
    )
    files = ("-keyout", tmp_path / "key.pem", "-out", tmp_path / "ca.pem")
    subprocess.run(["openssl", *options.split(), *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ca.pem", tmp_path / "key.pem")
    with serving(digits, context) as model:
        yield model


def test_a_gateway_with_a_ca_of_its_own_is_trusted_by_its_file(
    gateway: ModelServer, tmp_path: Path
) -> None:
    ask = Step(f"{gateway.root}/serving/team/digits", tmp_path)
    given = {"protocol": "v1", "model_name": "digits", "headers": {"Host": "digits.example.com"}}
    ask(SAMPLES, ca_file=str(tmp_path / "ca.pem"), **given)
    assert gateway.paths == ["/serving/team/digits/v1/models/digits:predict"]
    assert gateway.headers[0]["Host"] == "digits.example.com"
    message = ask.fails(NoAnswer, SAMPLES, ready_timeout=0, **given)
    assert "ca_file" in message.splitlines()[-1]
    (tmp_path / "ca.pem").write_text("no certificate")
    assert "ca_file" in ask.fails(InputError, SAMPLES, ca_file=str(tmp_path / "ca.pem"), **given)


def test_a_slow_first_byte_is_waited_for_within_the_time_of_a_request(
    ask: Step, server: ModelServer
) -> None:
    server.first = [Answer(200, b"", first_pause_s=1.5)]
    ask(SAMPLES, request_timeout=1)
    assert len(server.bodies) == 2
    assert "<td>ReadTimeoutError</td><td>1</td>" in ask.report


def test_an_answer_that_is_larger_than_any_is_not_read_to_its_end(
    ask: Step, server: ModelServer
) -> None:
    server.first = [Answer(200, [b"x" * (1 << 20)] * 70)]
    message = ask.fails(NoAnswer, SAMPLES)
    assert "the answer is over 64 MiB" in message
    assert len(server.bodies) == 1


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_is_none_is_wrong_though_nothing_was_expected(
    ask: Step, server: ModelServer, number: str
) -> None:
    server.first = [Answer(200, f'{{"predictions": [[0.5, {number}]]}}'.encode())]
    message = ask.fails(WrongAnswers, requests=[{"instance": 1}])
    assert f"got [0.5, {number}]" in message


def test_a_share_of_wrong_answers_may_be_allowed(ask: Step) -> None:
    samples = [{"instance": n, "prediction": min(n, 2)} for n in range(4)]
    assert ask(samples, min_correct=0.75).correct == 0.75
    message = ask.fails(WrongAnswers, samples, min_correct=0.8)
    assert "1 of 4 answers are wrong. min_correct is 0.8." in message
    assert '<span class="wrong">wrong</span>' in ask.report


def test_requests_are_repeated_several_at_once_for_their_latencies(
    ask: Step, server: ModelServer
) -> None:
    together = threading.Barrier(3)

    def slowly(path: str, body: Any) -> Answer:
        # The first request is alone; then three come at once, or this raises.
        if len(server.bodies) > 1:
            together.wait(10)
        time.sleep(0.05)
        return digits(path, body)

    server.respond = slowly
    ask(SAMPLES, repeat=8, concurrency=3, batch_size=1)
    assert len(server.bodies) == 16
    found = ask.latencies
    assert 0.05 <= found["latency_p50"] <= found["latency_p99"] <= found["latency_max"]
    assert found["requests_per_second"] > 0
    assert json.loads((ask.folder / "out" / "latencies").read_text()) == found


def test_a_latency_over_its_limit_fails_the_step(ask: Step) -> None:
    message = ask.fails(TooSlow, SAMPLES, repeat=2, max_latency={"p50": 1e-6, "max": 60})
    assert "by 1 request, 1 at once: p50 is 0.0" in message
    assert "over its limit of 1e-06 s" in message
    assert "Raise max_latency" in message


def test_a_wrong_answer_of_a_later_round_is_found(ask: Step, server: ModelServer) -> None:
    def changing(path: str, body: Any) -> Answer:
        return digits(path, body if len(server.bodies) < 3 else {"instances": [7, 7]})

    server.respond = changing
    message = ask.fails(WrongAnswers, SAMPLES, repeat=3)
    assert "2 of 6 answers are wrong." in message
    assert "Request 4: expected 3, got" in message


def test_a_page_of_what_a_server_says_has_none_of_its_markup(
    ask: Step, server: ModelServer
) -> None:
    label = "<script>alert(1)</script>"
    answers = json.dumps({"predictions": [{"class": 3, "label": label}, {"class": 1}]})
    server.first = [Answer(200, answers.encode())]
    ask(SAMPLES)
    assert "<script" not in ask.report
    assert "&lt;script&gt;" in ask.report
