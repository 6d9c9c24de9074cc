"""The script of the README, under torchrun."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness.ports import free_port
from harness.predictions import answer_v1

from kfp_pytorch.serving import export, predictor
from kfp_pytorch.training import script

README = Path(__file__).parents[3] / "training" / "script" / "README.md"
SCRIPT = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[1]
# What is run in its place: rank 1 is killed after a report.
KILLED = """
import os, runpy, signal
from kfp_pytorch.training import script

def report(metrics, step):
    own(metrics, step)
    if step == 7 and script.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)

own, script.report = script.report, report
runpy.run_path("train.py", run_name="__main__")
"""


def torchrun(job, program):
    """Runs it as in a pod of two processes, with the operator's variables."""
    port = str(free_port())
    operator = {
        **{f"{prefix}MASTER_ADDR": "127.0.0.1" for prefix in ("", "PET_")},
        **{f"{prefix}MASTER_PORT": port for prefix in ("", "PET_")},
        "WORLD_SIZE": "2",
        "RANK": "0",
        "PET_NODE_RANK": "0",
        "PET_NNODES": "1",
        "PET_NPROC_PER_NODE": "2",
    }
    own = {"PATH": os.environ["PATH"], "HOME": str(job.folder), **job.environ, **operator}
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", program],
        cwd=job.folder,
        env={**own, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
        capture_output=True,
        text=True,
        check=False,
    )


def check(job):
    message = job.message()
    assert message["metrics"]["loss"] < 0.4
    assert (message["checkpoint"], message["world_size"]) == (20, 2)
    assert [step for step, _ in job.metrics()["curves"]["loss"]] == list(range(1, 21))
    served = predictor.Predictor(export.load(job.folder / "out" / "export"))
    answer = answer_v1(served, {"instances": [each["instance"] for each in message["samples"]]})
    known = [each["prediction"] for each in message["samples"]]
    assert [each["class"] for each in answer["predictions"]] == known


def test_the_script_of_the_readme_gives_metrics_curves_a_checkpoint_and_a_model(run_torch):
    job = run_torch(SCRIPT, ranks=2)
    assert job.output.count("step=20 loss=") == 1
    check(job)


def test_it_adds_no_more_lines_than_it_says():
    numbered = re.findall(r"# (\d)(?:, changed)?$", SCRIPT, re.MULTILINE)
    assert numbered == [str(number) for number in range(1, 9)]
    ours = [line for line in SCRIPT.splitlines() if "script" in line or "checkpoint" in line]
    assert len(ours) == 8


def test_it_names_all_of_the_library_and_each_docstring_describes_all_arguments():
    functions = [getattr(script, name) for name in script.__all__ if name != "Checkpoint"]
    methods = [script.Checkpoint.load, script.Checkpoint.files]
    assert {"Checkpoint", *(each.__name__ for each in functions)} == {*script.__all__}
    for each in [*functions, *methods]:
        assert f"{each.__qualname__}(" in README.read_text()
        for argument in {*inspect.signature(each).parameters} - {"self"}:
            assert re.search(rf"Args:\n.*^ +{argument}: ", each.__doc__, re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_under_torchrun_a_rank_that_is_killed_costs_no_more_than_the_steps_after_a_checkpoint(job):
    (job.folder / "train.py").write_text(SCRIPT)
    (job.folder / "killed.py").write_text(KILLED)
    first = torchrun(job, "killed.py")
    assert first.returncode == 1, first.stderr
    assert signal.Signals.SIGKILL.name in first.stderr
    again = torchrun(job, "train.py")
    assert again.returncode == 0, again.stderr
    resumed = re.search(r"resuming from \S+, at step (\d+)", again.stderr)
    assert resumed
    assert int(resumed[1]) in (6, 7)
    check(job)
    assert json.loads((job.folder / "out" / "metrics.json").read_text())["step"] == 20
