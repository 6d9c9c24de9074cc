"""Scripts of somebody's own, each in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent.parent / "programs" / "script_process.py"
IMPORT = "from kfp_pytorch.training import script\n"
# Importing it takes longer than most scripts here.
WITHOUT_TENSORBOARD = "import sys\nsys.modules['tensorboard'] = None\n"


@dataclass
class Job:
    """A job of one node, whose containers start one after the other."""

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)
    output: str = ""
    exit_codes: list[int | None] = field(default_factory=list)

    def message(self) -> dict[str, Any]:
        content = (self.folder / "termination").read_bytes()
        assert len(content) <= 2048
        return dict(json.loads(content))

    def start(self, in_container: bool) -> None:
        """Begins a start, in a container without a message unless it ran a program before."""
        if not in_container:
            (self.folder / "termination").write_text("")

    def metrics(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "out" / "metrics.json").read_text()))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    environ = {
        "KFP_PYTORCH_OUTPUT": str(tmp_path / "out"),
        "KFP_PYTORCH_TERMINATION_LOG": str(tmp_path / "termination"),
    }
    return Job(tmp_path, environ)


@pytest.fixture
def run(job: Job) -> Callable[..., Job]:
    """Runs a script without torch: `run("script.report({'loss': 1})")`."""

    def start(
        source: str, code: int = 0, board: bool = False, in_container: bool = False, **environ: str
    ) -> Job:
        job.start(in_container)
        path = job.folder / "train.py"
        head = IMPORT if board else WITHOUT_TENSORBOARD + IMPORT
        path.write_text(head + textwrap.dedent(source))
        own = {"PATH": os.environ["PATH"], "HOME": str(job.folder), **job.environ, **environ}
        found = subprocess.run(
            [sys.executable, str(path)],
            cwd=job.folder,
            env=own,
            capture_output=True,
            text=True,
            check=False,
        )
        job.output = found.stdout + found.stderr
        job.exit_codes = [found.returncode]
        assert found.returncode == code, job.output
        return job

    return start


@pytest.fixture
def run_torch(job: Job, start_ranks: Callable[..., Any]) -> Callable[..., Job]:
    """Runs a script that has torch, on so many ranks."""
    count = iter(range(100))

    def start(
        source: str,
        ranks: int = 1,
        code: int | None = 0,
        in_container: bool = False,
        **environ: str,
    ) -> Job:
        job.start(in_container)
        path = job.folder / "train.py"
        path.write_text("import torch\n" + IMPORT + textwrap.dedent(source))
        started = start_ranks(
            ranks,
            str(path),
            name=f"start-{next(count)}",
            program=PROGRAM,
            environ={**job.environ, **environ},
        )
        job.exit_codes = started.exit_codes()
        job.output = "".join(started.output(rank) for rank in range(ranks))
        if code is not None:
            assert job.exit_codes == [code] * ranks, job.output
        return job

    return start
