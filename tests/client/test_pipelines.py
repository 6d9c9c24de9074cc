"""Pipelines are uploaded once for each content, after all that can be checked was."""

from __future__ import annotations

import pytest
from harness.faults.actions import Answer
from harness.faults.plan import Fault
from harness.kfp_api.pipelines import greeting, looping
from kfp import dsl

from kfp_pytorch.client import Client, ClientError
from kfp_pytorch.components import pytorch_job
from kfp_pytorch.pipelines import train_and_serve

UPLOAD = "/apis/v2beta1/pipelines/upload_version"


@pytest.fixture
def package(tmp_path):
    """A compiled pipeline as a file."""
    from kfp import compiler

    path = tmp_path / "greeting.yaml"
    compiler.Compiler().compile(greeting, str(path))
    return path


def test_the_same_content_is_uploaded_once_from_code_or_a_file(server, client, package):
    first = client.upload(greeting)
    again = client.upload(package)
    assert (first.uploaded, again.uploaded) == (True, False)
    assert (first.version_id, first.name) == (again.version_id, again.name)
    assert first.pipeline == "greeting"
    assert first.url == (
        f"{server.url}/#/pipelines/details/{first.pipeline_id}/version/{first.version_id}"
    )
    assert server.asked(UPLOAD) == 1


def test_other_content_is_another_version_of_the_same_pipeline(client, package):
    first = client.upload(package)
    package.write_text(package.read_text().replace("Who is greeted", "Whom to greet"))
    second = client.upload(package)
    assert second.uploaded
    assert first.pipeline_id == second.pipeline_id
    assert first.name != second.name


def test_the_description_goes_with_it(server, client):
    client.upload(greeting)
    client.upload(looping, description="mine", name="called")
    described = {p["name"]: p.get("description") for p in server.store.pipelines.values()}
    assert described == {"greeting": "Greets.", "called": "mine"}
    assert [v["description"] for v in server.store.versions.values()] == ["Greets.", "mine"]


def test_a_name_of_ones_own_is_kept_for_its_content(client, package):
    assert client.upload(package, version="v1").uploaded
    assert not client.upload(greeting, version="v1").uploaded
    with pytest.raises(ClientError, match="has a version 'v1' with other content"):
        client.upload(looping, name="greeting", version="v1")


def test_a_pipeline_with_settings_of_kubernetes_is_known_again(client):
    assert client.upload(train_and_serve, version="v1").uploaded
    assert not client.upload(train_and_serve, version="v1").uploaded


def test_a_pipeline_whose_first_version_was_refused_is_taken_back(server, client):
    server.faults.add(Fault(Answer(400, body="{}"), path=UPLOAD))
    with pytest.raises(ClientError):
        client.upload(greeting)
    assert server.store.pipelines == {}
    assert client.upload(greeting).uploaded


@pytest.mark.parametrize(
    ("text", "message"),
    [("a: [", "cannot be read as YAML"), ("a: 1", "is not a compiled pipeline")],
)
def test_a_file_that_is_no_package_is_not_sent(server, client, tmp_path, text, message):
    (tmp_path / "broken.yaml").write_text(text)
    with pytest.raises(ClientError, match=message):
        client.upload(tmp_path / "broken.yaml")
    assert server.asked(UPLOAD) == 0


def test_a_constant_that_cannot_work_is_found_before_anything_is_sent(server, client):
    @dsl.pipeline(name="none")
    def none():
        pytorch_job(image="x", num_nodes=0)

    with pytest.raises(ClientError, match="num_nodes is 0"):
        client.upload(none)
    assert server.asked("/pipelines") == 0


def test_what_an_older_kfp_does_not_know_is_refused(serve):
    server = serve("2.14.0")
    client = Client(server.url)
    with pytest.raises(ClientError, match=r"needs KFP 2\.15 or later, and this is 2\.14"):
        client.upload(train_and_serve)
    assert server.store.pipelines == {}
    assert client.upload(greeting).uploaded


def test_a_name_that_is_too_long_is_told_with_the_limit(client):
    with pytest.raises(ClientError, match="KFP takes from 1 to 128 characters"):
        client.upload(greeting, name="x" * 129)
    with pytest.raises(ClientError, match="KFP takes from 1 to 127 characters"):
        client.upload(greeting, version=" ")


def test_a_name_that_kfp_would_not_find_again_is_refused(server, client):
    with pytest.raises(ClientError, match="'team/greeting'; KFP finds none again"):
        client.upload(greeting, name="team/greeting")
    assert server.store.pipelines == {}


def test_a_name_with_characters_of_urls_is_found_again(client):
    first = client.upload(greeting, name="a+b?c#d%20é")
    again = client.upload(greeting, name="a+b?c#d%20é")
    assert (again.pipeline_id, again.uploaded) == (first.pipeline_id, False)


def test_in_a_namespace_a_pipeline_is_that_namespaces(serve):
    server = serve(multi_user=True)
    first = Client(server.url, namespace="a").upload(greeting)
    other = Client(server.url, namespace="b").upload(greeting)
    assert other.uploaded
    assert first.pipeline_id != other.pipeline_id
