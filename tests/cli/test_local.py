"""`kfp-pytorch local`: where the cluster is, what it refuses, and that it leaves nothing."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from unittest import mock

import pytest
from harness.command import invoke
from harness.disks import mounted

from kfp_pytorch.local import lifecycle


@pytest.fixture
def read_only(tmp_path):
    """A folder on a disk that is mounted read-only."""
    with mounted(tmp_path / "read-only", "ro") as place:
        yield place


@pytest.mark.parametrize("command", [["local", "up"], ["run", "train_and_serve", "--local"]])
def test_a_home_that_cannot_be_written_is_named_with_the_way_out(
    cli, tmp_path, monkeypatch, read_only, command
):
    file = tmp_path / "file"
    file.touch()
    for home in (file, file / "below", read_only, read_only / "below", Path("/proc/nope")):
        monkeypatch.setenv(lifecycle.HOME_ENV, str(home))
        result = cli(*command)
        assert result.exit_code == 1
        assert f"Cannot write {home}: " in result.output
        assert "set KFP_PYTORCH_HOME or --root to another folder" in result.output
        assert "Errno" not in result.output


def test_a_folder_below_one_that_is_gone_and_a_user_without_a_home_are_told_the_way_out(
    cli, tmp_path, monkeypatch
):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    homeless = mock.Mock(side_effect=RuntimeError("Could not determine home directory."))
    monkeypatch.delenv(lifecycle.HOME_ENV, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    for root in (["--root", "x"], []):
        result = cli("local", "status", *root)
        assert result.exit_code == 1
        assert "Set KFP_PYTORCH_HOME or --root to a folder by its whole path" in result.output


@pytest.mark.parametrize("command", [["local", "up"], ["run", "train_and_serve", "--local"]])
def test_an_installation_without_the_local_cluster_says_what_to_install(
    cli, tmp_path, monkeypatch, command
):
    monkeypatch.setattr(lifecycle, "_MODULES", ("json", "not_installed"))
    root = tmp_path / "root"
    result = cli(*command, "--root", root)
    assert result.exit_code == 1
    assert "the local cluster needs not_installed" in result.output
    assert "install kfp-pytorch[local]" in result.output
    assert not root.exists()


def test_definitions_of_a_folder_without_any_are_refused(root, tmp_path):
    (tmp_path / "crds").mkdir()
    up = invoke("local", "up", "--crds", tmp_path / "crds", root=root)
    assert up.returncode == 1
    assert f"no CustomResourceDefinition: {tmp_path}/crds holds no file *.json" in up.stderr


def test_up_status_and_down_tell_where_the_cluster_is(root):
    assert invoke("local", "status", root=root).returncode == 1
    up = invoke("local", "up", root=root)
    assert up.returncode == 0, up.stderr
    assert f"export KUBECONFIG={root}/kubeconfig" in up.stdout
    assert invoke("local", "status", root=root).stdout == up.stdout
    again = invoke("local", "up", root=root)
    assert again.returncode == 1
    assert "kfp-pytorch local down" in again.stderr
    assert invoke("local", "down", root=root).stdout == "The cluster is down.\n"
    assert "No cluster was up" in invoke("local", "down", root=root).stdout


def test_a_port_in_use_is_named_and_nothing_is_left(root):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        up = invoke("local", "up", "--port", port, root=root)
    assert up.returncode == 1
    assert f"port {port} of 127.0.0.1 cannot be used: Address already in use" in up.stderr
    assert "Errno" not in up.stderr
    assert lifecycle.status(root) is None


def test_with_json_the_cluster_is_told_as_one_object(cli, root):
    assert json.loads(cli("local", "status", "--root", root, "--json").output) == {"up": False}
    up = json.loads(cli("local", "up", "--root", root, "--json").output)
    assert (up["up"], up["kubeconfig"]) == (True, str(root / "kubeconfig"))
    assert json.loads(cli("local", "status", "--root", root, "--json").output) == up
    down = json.loads(cli("local", "down", "--root", root, "--json").output)
    assert down == {"up": False, "stopped": True}
