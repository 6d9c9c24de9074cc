from __future__ import annotations

import base64
import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import PYTORCHJOB
from kfp_pytorch.launcher.errors import CannotObserve
from kfp_pytorch.launcher.kubernetes.client import connect
from kfp_pytorch.launcher.kubernetes.credentials import Credentials, NoCluster, load
from kfp_pytorch.launcher.kubernetes.transport import RetryPolicy


def token_of(subject: str) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"sub": subject}).encode()).decode().rstrip("=")
    return f"e30.{claims}.c2ln"


def kubeconfig(path: Path, user: dict[str, Any], cluster: dict[str, Any] | None = None) -> Path:
    config = {
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "me", "namespace": "team"}}
        ],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1/"} | (cluster or {})}],
        "users": [{"name": "me", "user": user}],
    }
    path.write_text(json.dumps(config))
    return path


def test_a_kubeconfig_gives_server_namespace_and_token(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", {"token": "secret"})
    found = load({"KUBECONFIG": str(path)})
    assert (found.server, found.namespace) == ("http://127.0.0.1:1", "team")
    assert found.authorization == "Bearer secret"
    assert "secret" not in repr(found)


def test_a_token_file_is_read_afresh_and_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", {"tokenFile": "token"})
    for token in ("one", "two"):
        (tmp_path / "token").write_text(f"{token}\n")
        assert load({"KUBECONFIG": str(path)}).authorization == f"Bearer {token}"


def test_a_user_name_and_password_are_basic_authentication(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", {"username": "a", "password": "b"})
    assert load({"KUBECONFIG": str(path)}).authorization == "Basic YTpi"


def test_the_first_file_of_a_list_wins(tmp_path: Path) -> None:
    one = kubeconfig(tmp_path / "one", {"token": "first"})
    two = kubeconfig(tmp_path / "two", {"token": "second"}, {"server": "http://other"})
    found = load({"KUBECONFIG": f"{tmp_path / 'absent'}:{one}:{two}"})
    assert (found.server, found.authorization) == ("http://127.0.0.1:1", "Bearer first")


def test_a_pods_service_account_names_itself(tmp_path: Path) -> None:
    subject = "system:serviceaccount:team:default-editor"
    (tmp_path / "token").write_text(token_of(subject))
    (tmp_path / "namespace").write_text("team")
    (tmp_path / "ca.crt").write_text(Path(__import__("certifi").where()).read_text())
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    found = load(environ, tmp_path)
    assert (found.server, found.namespace) == ("https://[fd00::1]:6443", "team")
    assert found.account == subject
    assert found.tls is not None


def test_files_and_variables_of_a_pod_may_end_with_a_line_break(tmp_path: Path) -> None:
    subject = "system:serviceaccount:team:default-editor"
    (tmp_path / "token").write_text(f"{token_of(subject)}\n")
    (tmp_path / "namespace").write_text("team\n")
    (tmp_path / "ca.crt").write_text(f"\n{Path(__import__('certifi').where()).read_text()}\n")
    environ = {"KUBERNETES_SERVICE_HOST": "h\n", "KUBERNETES_SERVICE_PORT": "6443\n"}
    found = load(environ, tmp_path)
    assert (found.server, found.namespace) == ("https://h:6443", "team")
    assert found.authorization == f"Bearer {token_of(subject)}"


def test_addresses_in_a_kubeconfig_may_end_with_a_line_break(tmp_path: Path) -> None:
    cluster = {"server": "http://h:8080\n", "proxy-url": "http://proxy:3128\n"}
    found = load({"KUBECONFIG": str(kubeconfig(tmp_path / "config", {}, cluster))})
    assert (found.server, found.proxy) == ("http://h:8080", "http://proxy:3128")


def test_a_kubeconfig_that_was_set_goes_before_the_service_account(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    path = kubeconfig(tmp_path / "config", {})
    environ = {"KUBECONFIG": str(path), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert load(environ, tmp_path).server == "http://127.0.0.1:1"


def test_a_variable_that_the_training_pods_alone_have_a_file_for_leaves_a_step_its_account(
    tmp_path: Path,
) -> None:
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_text(Path(__import__("certifi").where()).read_text())
    environ = {"KUBECONFIG": "/in/the/training/pod", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert load(environ, tmp_path).server == "https://10.0.0.1:443"


def test_a_kubeconfig_in_a_step_which_has_no_pyyaml_says_whose_it_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(NoCluster, match=r"PyYAML is not installed.* by the input env"):
        load({"KUBECONFIG": str(kubeconfig(tmp_path / "config", {}))})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "no current-context"),
        ("{", "cannot be read"),
        ('{"current-context": "x"}', "no 'x' under 'contexts'"),
        ('["a"]', "is no kubeconfig"),
        ("just text", "is no kubeconfig"),
        ('{"current-context": "x", "contexts": "x"}', "is no kubeconfig"),
        ('{"current-context": "x", "contexts": [null]}', "is no kubeconfig"),
        ('{"current-context": "x", "contexts": [{"name": "x"}]}', "no 'context' of 'x'"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_says_why(
    tmp_path: Path, content: str, words: str
) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(NoCluster, match=words):
        load({"KUBECONFIG": str(path)})


@pytest.mark.parametrize(
    "server", [None, "", "https://", "ftp://h", "http://h:port", "http://a b", "http://.h"]
)
def test_a_server_that_is_no_address_is_not_asked_for_a_minute(tmp_path: Path, server: Any) -> None:
    path = kubeconfig(tmp_path / "config", {}, {"server": server})
    with pytest.raises(NoCluster, match=r"https:// and a host"):
        load({"KUBECONFIG": str(path)})


def test_an_address_may_be_written_as_kubectl_takes_it(tmp_path: Path) -> None:
    for written, read in (("h:8080", "http://h:8080"), ("HTTP://h/k8s/", "http://h/k8s")):
        path = kubeconfig(tmp_path / "config", {}, {"server": written})
        assert load({"KUBECONFIG": str(path)}).server == read


@pytest.mark.parametrize("token", ["sec\nret", "sec\tret", "secret✨"])
def test_a_token_that_no_header_carries_is_said_to_be_so_and_not_shown(
    tmp_path: Path, token: str
) -> None:
    path = kubeconfig(tmp_path / "config", {"token": token})
    with pytest.raises(NoCluster, match="the token holds") as raised:
        load({"KUBECONFIG": str(path)})
    assert "sec" not in raised.value.message
    path = kubeconfig(tmp_path / "config", {"token": "secret\n"})
    assert load({"KUBECONFIG": str(path)}).authorization == "Bearer secret"


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    cluster = {"server": "https://h", "certificate-authority": "mine.crt"}
    path = kubeconfig(tmp_path / "config", {}, cluster)
    with pytest.raises(NoCluster, match=r"mine\.crt"):
        load({"KUBECONFIG": str(path)})


def test_without_any_cluster_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(NoCluster, match="kfp-pytorch local up"):
        load({}, tmp_path)
    with pytest.raises(NoCluster, match="does not exist"):
        load({"KUBECONFIG": str(tmp_path / "absent")}, tmp_path)


def test_a_proxy_is_used_but_never_for_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("https_proxy", "without.a.scheme:3128")
    monkeypatch.setenv("no_proxy", ".inside,10.96.0.0/12, fd00::/8,not/a-net")
    for server, proxy in (
        ("http://127.0.0.1:1", ""),
        ("http://localhost:1", ""),
        ("http://api.inside:1", ""),
        ("http://api.outside:1", "http://proxy:3128"),
        ("http://10.96.0.1:1", ""),
        ("http://[fd00::1]:1", ""),
        ("http://10.112.0.1:1", "http://proxy:3128"),
        ("https://api.outside:1", "http://without.a.scheme:3128"),
    ):
        path = kubeconfig(tmp_path / "config", {}, {"server": server})
        assert load({"KUBECONFIG": str(path)}).proxy == proxy


@pytest.mark.parametrize("url", ["socks5://proxy:1080", "http://"])
def test_a_proxy_that_cannot_be_used_is_named(tmp_path: Path, url: str) -> None:
    server = {"server": "http://api.outside:1", "proxy-url": url}
    path = kubeconfig(tmp_path / "config", {}, server)
    with pytest.raises(NoCluster, match="http:// or https://") as caught:
        load({"KUBECONFIG": str(path)})
    assert repr(url) in caught.value.message


def test_a_proxy_that_wants_a_password_gets_it(
    tmp_path: Path,
) -> None:
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def relay() -> None:
            connection, _ = listening.accept()
            with connection:
                asked.append(connection.recv(65536).decode())
                connection.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=relay)
        thread.start()
        proxy = f"http://me:p%40ss@127.0.0.1:{listening.getsockname()[1]}"
        cluster = {"server": "http://api.outside:1", "proxy-url": proxy}
        path = kubeconfig(tmp_path / "config", {}, cluster)
        found = load({"KUBECONFIG": str(path)})
        assert "p%40ss" not in repr(found)
        connection = connect(policy=RetryPolicy(0, 0), load_credentials=lambda: found)
        with pytest.raises(CannotObserve) as caught:
            connection.get(PYTORCHJOB, "j")
        thread.join()
    assert "p%40ss" not in caught.value.message
    assert base64.b64encode(b"me:p@ss").decode() in asked[0]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates with openssl")
def test_a_rotated_ca_is_read_from_disk_where_the_server_is_not_trusted_any_more(
    tmp_path: Path,
) -> None:
    for name in ("old", "new"):
        options = (
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=a "
            f"-addext subjectAltName=IP:127.0.0.1 -keyout {name}.key -out {name}.crt"
        )
        subprocess.run(["openssl", *options.split()], check=True, capture_output=True, cwd=tmp_path)
    (tmp_path / "ca.crt").write_bytes((tmp_path / "old.crt").read_bytes())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"kind": "PyTorchJob", "metadata": {"name": "j"}}')

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "new.crt", tmp_path / "new.key")
    http.socket = context.wrap_socket(http.socket, server_side=True)
    serving = threading.Thread(target=http.serve_forever, args=(0.01,))
    serving.start()
    cluster = {
        "server": f"https://127.0.0.1:{http.server_port}",
        "certificate-authority": "ca.crt",
    }
    path = kubeconfig(tmp_path / "config", {}, cluster)
    tries = 0

    def load_again() -> Credentials:
        nonlocal tries
        tries += 1
        if tries == 3:
            (tmp_path / "ca.crt").write_bytes((tmp_path / "new.crt").read_bytes())
        return load({"KUBECONFIG": str(path)})

    try:
        policy = RetryPolicy(30, 30, pause=0.01, max_pause=0.02)
        connection = connect(policy=policy, load_credentials=load_again)
        assert connection.get(PYTORCHJOB, "j")["metadata"]["name"] == "j"
        (tmp_path / "ca.crt").write_bytes((tmp_path / "old.crt").read_bytes())
        connection = connect(policy=RetryPolicy(0, 0), load_credentials=load_again)
        with pytest.raises(CannotObserve, match="Check that the CA in the kubeconfig"):
            connection.get(PYTORCHJOB, "j")
    finally:
        http.shutdown()
        http.server_close()
        serving.join()


def test_files_are_looked_for_beside_the_kubeconfig_that_names_them(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(name)
    whole = json.loads(kubeconfig(tmp_path / "config", {"tokenFile": "token"}).read_text())
    context = {key: whole.pop(key) for key in ("current-context", "contexts")}
    (tmp_path / "one" / "config").write_text(json.dumps(context))
    (tmp_path / "two" / "config").write_text(json.dumps(whole))
    paths = f"{tmp_path / 'one' / 'config'}:{tmp_path / 'two' / 'config'}"
    assert load({"KUBECONFIG": paths}).authorization == "Bearer two"


def test_an_exec_plugin_is_left_to_the_official_client(tmp_path: Path) -> None:
    answer = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "from-a-plugin"},
    }
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", f"print({json.dumps(json.dumps(answer))})"],
    }
    path = kubeconfig(tmp_path / "config", {"exec": plugin})
    assert load({"KUBECONFIG": str(path)}).authorization == "Bearer from-a-plugin"


def test_an_exec_plugin_without_the_official_client_names_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    path = kubeconfig(tmp_path / "config", {"exec": {"command": "aws"}})
    with pytest.raises(NoCluster, match="pip install kubernetes"):
        load({"KUBECONFIG": str(path)})


def test_a_server_that_cannot_be_reached_is_named_without_the_secrets_of_its_url() -> None:
    who = Credentials("http://me:hidden@127.0.0.1:1/a-secret-path", "default", "a test")
    policy = RetryPolicy(unavailability_budget=0.0, first_contact=0.0, connect=1.0)
    kube = connect(load_credentials=lambda: who, policy=policy)
    with pytest.raises(CannotObserve) as raised:
        kube.get(PYTORCHJOB, "job")
    assert "(http://127.0.0.1:1, from a test)" in raised.value.message
    assert "secret" not in raised.value.message
    assert "hidden" not in raised.value.message
