"""A run that is killed in the middle of training goes on from its last checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys

import click
import pytest
from harness.in_process import learned

from kfp_pytorch.cli.runs import run_folder as runs
from kfp_pytorch.local import lifecycle

COMMAND = [sys.executable, "-m", "kfp_pytorch.cli", "run", "train_and_serve", "--local", "--json"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_run_resumes_in_the_same_folder_and_ends_as_if_nothing_had_been(tmp_path):
    def start(root, *options):
        return subprocess.Popen(
            [*COMMAND, "--root", str(tmp_path / root), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    with start("whole") as process:
        whole = json.loads(process.communicate()[0])
    process = start("killed")
    for line in process.stderr:
        if "epoch=6 " in line:
            break
    process.kill()
    process.communicate()
    with start("killed", "--resume") as process:
        stdout, stderr = process.communicate()
    resumed = json.loads(stdout)
    assert resumed["status"] == "succeeded", stderr
    assert learned(resumed["metrics"]) == pytest.approx(learned(whole["metrics"]))
    assert "epoch=1 " not in stderr
    assert "epoch=15 " in stderr
    assert lifecycle.status(tmp_path / "killed") is None


@pytest.mark.parametrize(
    "damaged", ["", "{", "[1]", '{"pipeline": "p"}', '{"pipeline": "p", "x": 1}']
)
def test_the_damaged_files_of_a_run_stand_in_no_others_way(tmp_path, damaged):
    for name in ("p-1", "p-2"):
        wanted = runs.Run(name, f"id-{name}", "p", {"a": 1})
        runs.write(tmp_path / name, wanted, {})
    (tmp_path / "p-2" / runs.RUN_FILE).write_text(damaged)
    (tmp_path / "p-1" / runs.SUMMARY_FILE).write_text(damaged)
    assert runs.run_to_resume(tmp_path, "p", {"b": 2}).arguments == {"a": 1, "b": 2}
    with pytest.raises(click.ClickException, match="no run of q to resume"):
        runs.run_to_resume(tmp_path, "q", {})


def test_a_run_of_a_version_that_kept_no_options_is_resumed(tmp_path):
    runs.write(tmp_path / "p-1", runs.Run("p-1", "id", "p", {"a": 1}), {})
    file = tmp_path / "p-1" / runs.RUN_FILE
    kept = json.loads(file.read_text())
    del kept["options"]
    file.write_text(json.dumps(kept))
    assert runs.run_to_resume(tmp_path, "p", {}) == runs.Run("p-1", "id", "p", {"a": 1})
