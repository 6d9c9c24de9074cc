"""A connection to KFP: credentials, faults, and what is not KFP."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from harness.api_server import kubeconfig, write_kubeconfig
from harness.faults.actions import Answer, LostAnswer, Reset, TokenExpired
from harness.faults.plan import Fault
from kubernetes.config import kube_config

from kfp_pytorch.client import Client, ClientError, connection
from kfp_pytorch.client.connection import Endpoint

UPSTREAM = "upstream connect error or disconnect/reset before headers"
EXPERIMENTS = "/apis/v2beta1/experiments"


def experiments(client: Client) -> int:
    method = client.connection.client.experiments.experiment_service_list_experiments
    return int(client.connection.call(method).total_size)


def refused(*given, **named):
    with pytest.raises(ClientError) as error:
        Client(*given, **named)
    return str(error.value)


def test_a_token_of_a_file_that_was_renewed_is_read_again(server, tmp_path):
    token = tmp_path / "token"
    token.write_text("old\n")
    server.tokens = {"old"}
    client = Client(server.url, token_file=str(token))
    server.tokens = {"new"}
    server.faults.add(Fault(Renews(token), path=EXPERIMENTS))
    assert experiments(client) == 1
    assert server.asked(EXPERIMENTS) == 2


class Renews:
    """The token is refused, and its issuer writes another while that is said."""

    def __init__(self, token):
        self.token = token

    async def strike(self, call):
        self.token.write_text("new")
        await TokenExpired().strike(call)


def test_cookies_of_a_file_that_was_renewed_are_read_again(server, tmp_path):
    cookies = tmp_path / "cookies"
    cookies.write_text("session=old")
    server.cookies = {"session=old"}
    client = Client(server.url, cookie_file=str(cookies))
    server.cookies = {"session=new"}
    cookies.write_text("session=new\n")
    assert experiments(client) == 1


def test_a_token_or_cookies_of_the_environment_are_taken(server, monkeypatch):
    server.tokens = {"secret-token"}
    assert "does not take the credentials" in refused(server.url)
    monkeypatch.setenv("KFP_PYTORCH_TOKEN", "secret-token")
    assert experiments(Client(server.url)) == 1
    monkeypatch.delenv("KFP_PYTORCH_TOKEN")
    server.cookies = {"session=x"}
    monkeypatch.setenv("KFP_PYTORCH_COOKIE", "session=x")
    assert experiments(Client(server.url)) == 1


def test_a_refused_token_is_told_without_it(server, monkeypatch):
    server.tokens = {"another"}
    words = refused(server.url, token="secret-token", cookie="a=secret-cookie")
    assert "does not take the credentials: Request is not authenticated" in words
    assert "KFP_PYTORCH_TOKEN" in words
    assert "secret" not in words + repr(Endpoint(token="secret-token", cookie="a=secret-cookie"))


def test_a_login_page_is_not_taken_for_an_answer(server):
    server.tokens, server.login_page = {"t"}, True
    assert "answers with a page (text/html), not as KFP's API does" in refused(server.url)
    server.faults.add(Fault(Answer(302, body="<a>Found</a>")))
    assert "sends to another page" in refused(server.url)


def test_an_older_server_without_this_api_is_told(server):
    server.faults.add(Fault(Answer(404, body="404 page not found"), times=None))
    assert "has no KFP API of version 2" in refused(server.url)


def test_a_file_that_is_not_there_or_empty_is_named(server, tmp_path):
    (tmp_path / "empty").touch()
    for option in ("token_file", "cookie_file"):
        assert "No such file" in refused(server.url, **{option: str(tmp_path / "none")})
        assert "is empty" in refused(server.url, **{option: str(tmp_path / "empty")})
    assert "there is no file" in refused(server.url, ca_file=str(tmp_path / "none"))


@pytest.mark.parametrize("secret", ["one\ntwo", "pass\u00e9", "a\x00b"])
def test_a_secret_that_no_request_carries_is_refused_and_not_shown(
    server, tmp_path, monkeypatch, secret
):
    (tmp_path / "file").write_text(secret, encoding="utf-8")
    for option in ("token_file", "cookie_file"):
        said = refused(server.url, **{option: str(tmp_path / "file")})
        assert "has several lines or characters" in said
        assert secret not in said
    if "\0" not in secret:
        monkeypatch.setenv(connection.TOKEN_ENV, secret)
        assert f"${connection.TOKEN_ENV} has several lines" in refused(server.url)


def test_a_password_in_the_url_is_refused_and_not_shown():
    for host in ("https://me:hidden@kfp.example.com", "me:hidden@kfp.example.com/pipeline"):
        said = refused(host)
        assert "has a user before its host" in said
        assert "hidden" not in said


def test_an_address_where_nothing_is_is_told_soon(serve):
    server = serve()
    server.stop()
    words = refused(server.url)
    assert "cannot be reached" in words
    assert "Connection refused" in words
    assert "kubectl port-forward" in words


def test_kfp_is_reached_through_the_kubeconfig_where_no_url_is_given(server, tmp_path, monkeypatch):
    server.tokens = {"token-of-the-kubeconfig"}
    config = kubeconfig(server.url, "token-of-the-kubeconfig")
    path = write_kubeconfig(tmp_path / "config", config)
    # The kubernetes client looks at $KUBECONFIG when it is imported.
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    client = Client()
    assert experiments(client) == 1
    assert client.connection.link("runs") == ""
    assert experiments(Client(context="kfp-pytorch-local")) == 1


def test_where_nothing_says_where_kfp_is_that_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    monkeypatch.delenv("KF_PIPELINES_ENDPOINT", raising=False)
    assert "Nothing says where KFP is: give its URL" in refused()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "action",
    [Reset(), Reset(after_bytes=10), Answer(503, body=UPSTREAM), Answer(429), Answer(500)],
    ids=["reset", "cut", "proxy", "busy", "database"],
)
def test_a_read_is_made_again_while_the_server_fails(server, client, action):
    server.faults.add(Fault(action, path=EXPERIMENTS, times=3))
    assert experiments(client) == 1
    assert server.asked(EXPERIMENTS) == 4


def test_a_server_that_fails_for_good_is_told(server, client, monkeypatch):
    server.faults.add(Fault(Answer(503, body=UPSTREAM), path=EXPERIMENTS, times=None))
    method = client.connection.client.experiments.experiment_service_list_experiments
    with pytest.raises(ClientError, match="fails with HTTP 503: upstream connect error"):
        client.connection.call(method, patience_s=0.1)


def test_the_namespace_must_be_named_where_kfp_has_many_users(serve):
    server = serve(multi_user=True)
    assert "has several users, and no namespace is named" in refused(server.url)
    client = Client(server.url, namespace="mine")
    assert client.runs() == []


def test_a_lost_answer_to_what_creates_is_looked_up_and_nothing_made_twice(server, client):
    from harness.kfp_api.pipelines import greeting

    for path in ("experiments", "pipelines", "pipelines/upload_version", "runs", "recurringruns"):
        fault = LostAnswer("reset")
        server.faults.add(Fault(fault, verb="create", path=f"/apis/v2beta1/{path}"))
    version = client.upload(greeting)
    run = client.run(greeting, {"name": "you"}, experiment="mine")
    schedule = client.schedule(greeting, "often", {"name": "you"}, every_s=60)
    store = server.store
    assert server.faults.struck() == 5
    assert list(store.versions) == [version.version_id]
    assert list(store.runs) == [run.run_id]
    assert list(store.recurring) == [schedule.schedule_id]
    names = [each["display_name"] for each in store.experiments.values()]
    assert names == ["Default", "mine"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_a_certificate_of_ones_own_authority_is_trusted_where_it_is_named(serve, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    names = ("-subj", "/CN=kfp", "-addext", "subjectAltName=IP:127.0.0.1")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    subprocess.run(
        [*command, "-keyout", key, "-out", certificate], check=True, stderr=subprocess.DEVNULL
    )
    server = serve(certificate=(certificate, key))
    assert "its certificate is not trusted" in refused(server.url)
    assert experiments(Client(server.url, ca_file=str(certificate))) == 1
