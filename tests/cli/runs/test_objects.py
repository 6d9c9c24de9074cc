"""Secrets, ConfigMaps and claims that runs give to a cluster that they share."""

from __future__ import annotations

import click
import pytest

from kfp_pytorch.cli.runs import before, objects, session
from kfp_pytorch.launcher.constants import CLAIM
from kfp_pytorch.local import client
from kfp_pytorch.local.apiserver.registry import SECRET
from kfp_pytorch.local.controllers.kubernetes.claims import claim_folder, make_folder


@pytest.fixture
def target(api_server, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    return session.Target(root / "kubeconfig", root, "default", api_server.url)


def secret(value):
    return {"kind": "Secret", "metadata": {"name": "token"}, "data": {"key": value}}


def held(target, name="token"):
    return target.request("GET", client.path(SECRET, "default", name))["data"]


def test_what_a_run_gives_stays_as_it_is_until_it_ends(target):
    with objects.given(target, [secret("MQ==")], {}):
        with objects.given(target, [secret("MQ==")], {}):
            assert held(target) == {"key": "MQ=="}
        with (
            pytest.raises(click.ClickException, match="uses another Secret 'token': wait for its"),
            objects.given(target, [secret("Mg==")], {}),
        ):
            pass
        assert held(target) == {"key": "MQ=="}
    with objects.given(target, [secret("Mg==")], {}):
        assert held(target) == {"key": "Mg=="}


def test_a_claim_is_the_folder_that_was_given_last(target, tmp_path):
    place = claim_folder(target.root, "default", "mine")
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).touch()
        with objects.given(target, [], before.read([], [f"mine={folder}"], [], cpu=False).claims):
            assert target.request("GET", client.path(CLAIM, "default", "mine"))
            assert [each.name for each in place.iterdir()] == [name]
    (tmp_path / "b" / "b").unlink()
    (tmp_path / "b").rmdir()
    assert make_folder(target.root, "default", "mine").is_dir(), "the folder was removed"


def test_files_of_a_claims_own_are_not_hidden_by_a_folder(target, tmp_path):
    (make_folder(target.root, "default", "mine") / "own").touch()
    with (
        pytest.raises(click.ClickException, match="has files of its own already"),
        objects.given(target, [], {"mine": tmp_path}),
    ):
        pass


def test_what_the_cluster_refuses_is_named(target):
    wrong = {"kind": "Secret", "metadata": {"name": "token"}, "data": {"a key": "MQ=="}}
    with (
        pytest.raises(
            click.ClickException, match=r"The Secret 'token' is refused: .*a valid config"
        ),
        objects.given(target, [wrong], {}),
    ):
        pass


def test_a_folder_that_cannot_be_written_is_named(target):
    (target.root / "objects").touch()
    with (
        pytest.raises(click.ClickException, match=f"Cannot write {target.root}/objects"),
        objects.given(target, [secret("MQ==")], {}),
    ):
        pass


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ("mine", "it takes NAME=FOLDER"),
        ("mine=", "it takes NAME=FOLDER"),
        ("mine=/nonexistent", "the folder must exist"),
        ("../mine=/", "the claim's name is '../mine'"),
    ],
)
def test_a_claim_that_cannot_be_meant_is_refused(claim, words):
    with pytest.raises(click.ClickException) as caught:
        before.read([], [claim], [], cpu=False)
    assert words in caught.value.message
    assert claim in caught.value.message
