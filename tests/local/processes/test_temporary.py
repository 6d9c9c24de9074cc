"""Unix sockets fit into temporary folders, however long the path of TMPDIR is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kfp_pytorch.local.processes import temporary


@pytest.fixture
def long_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / ("t" * max(1, 99 - len(str(tmp_path))))
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def test_a_long_tmpdir_is_not_taken(long_tmpdir: Path) -> None:
    assert tempfile.gettempdir() == str(long_tmpdir)
    with tempfile.TemporaryDirectory(dir=temporary.short_folder()) as folder:
        code = "import multiprocessing.connection as c; print(c.Listener(family='AF_UNIX').address)"
        environ = {**os.environ, "TMPDIR": folder}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        assert done.stdout.startswith(folder)


def test_a_preferred_folder_is_made_if_its_path_is_short(long_tmpdir: Path) -> None:
    with tempfile.TemporaryDirectory(dir=temporary.short_folder()) as folder:
        short, long = Path(folder) / "tmp", Path(folder) / ("t" * 60)
        assert temporary.short_folder(short) == short
        assert short.is_dir()
        assert temporary.short_folder(long) != long
        assert not long.exists()
