"""How a registry is reached: who asks, over TLS, and what its other answers mean."""

from __future__ import annotations

import base64
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.registries import kubeflow
from harness.registries.serving import Fault, Reply, Served, serve

from kfp_pytorch.launcher.errors import InputError, StepError
from kfp_pytorch.launcher.registry.http import RegistryError

Register = Callable[..., Any]


def failure(kind: type[StepError], call: Callable[[], Any]) -> str:
    with pytest.raises(kind) as failed:
        call()
    return failed.value.message


def test_a_token_is_sent_and_never_shown_though_the_registry_repeats_it(
    register: Register,
    registry: Served,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MODEL_REGISTRY_TOKEN", "geheim\n")
    register(registry_url=registry.url)
    assert registry.headers["Authorization"] == "Bearer geheim"
    said = (401, b"bad header Authorization: Bearer geheim", {})
    registry.faults = [Fault("GET", "/registered_model", answer=said)]
    message = failure(RegistryError, lambda: register(registry_url=registry.url))
    assert "401 bad header Authorization: Bearer …" in message
    assert "use_secret_as_env: MODEL_REGISTRY_TOKEN" in message
    assert "geheim" not in message + "".join(capsys.readouterr())


def test_mlflow_gets_a_user_and_a_password_or_a_token(
    register: Register, mlflow_server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "geheim")
    register(mlflow_tracking_uri=mlflow_server.url)
    assert mlflow_server.headers["Authorization"] == "Bearer geheim"
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "s3cr/ü\n")
    register(mlflow_tracking_uri=mlflow_server.url)
    encoded = base64.b64encode("me:s3cr/ü".encode()).decode()
    assert mlflow_server.headers["Authorization"] == f"Basic {encoded}"


def test_a_token_that_no_header_can_carry_is_named_and_not_shown(
    register: Register, registry: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_REGISTRY_TOKEN", "geheim\nX: y")
    message = failure(InputError, lambda: register(registry_url=registry.url))
    assert "variable MODEL_REGISTRY_TOKEN is not one line of ASCII text" in message
    assert "geheim" not in message
    assert registry.requests == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((302, b"", {"Location": "https://login.example.com"}), "(to https://login.example.com)"),
        ((404, b"404 page not found", {}), "Something answers there that is no such registry"),
        ((200, b"<html>sign in</html>", {}), "did not answer in JSON to GET /registered_model"),
        ((403, b"RBAC: access denied", {}), "a gateway or mesh before the registry"),
        ((403, b"Invalid Host header - possible DNS rebinding", {}), "--allowed-hosts"),
    ],
)
def test_an_answer_that_is_not_the_registrys_ends_the_step_with_what_to_do(
    register: Register, registry: Served, answer: Reply, words: str
) -> None:
    registry.faults = [Fault("GET", "/registered_model", answer=answer)]
    assert words in failure(RegistryError, lambda: register(registry_url=registry.url))
    assert len(registry.requests) == 1


def test_an_address_that_nobody_listens_at_is_told_with_what_to_look_at(
    register: Register,
) -> None:
    with serve(kubeflow.ModelRegistry(), kubeflow.API) as gone:
        pass
    message = failure(RegistryError, lambda: register(registry_url=gone.url, timeout=1))
    assert "look at the address, and at the NetworkPolicies" in message


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_a_registry_with_a_certificate_authority_of_its_own_is_trusted_by_its_file(
    register: Register, tmp_path: Path
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    options = (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=registry "
        "-addext subjectAltName=IP:127.0.0.1"
    )
    command = ["openssl", *options.split(), "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serve(kubeflow.ModelRegistry(), kubeflow.API, tls=context) as registry:
        given = {"registry_url": registry.url, "timeout": 1}
        message = failure(RegistryError, lambda: register(**given))
        assert "name the file of its certificate authority in ca_file" in message
        done = register(**given, ca_file=str(certificate))
    assert done.outputs.model_version_id == "2"


@pytest.mark.parametrize(
    ("content", "words"),
    [("", "in PEM form"), ("no certificate", "in PEM form"), (None, "mount the file")],
)
def test_a_file_of_certificates_that_is_none_is_named_before_anything_is_asked(
    register: Register, registry: Served, tmp_path: Path, content: str | None, words: str
) -> None:
    wrong = tmp_path / "ca.pem"
    if content is not None:
        wrong.write_text(content)
    given = {"registry_url": registry.url, "ca_file": str(wrong)}
    assert words in failure(InputError, lambda: register(**given))
    assert registry.requests == []
