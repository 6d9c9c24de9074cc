"""However a run is ended: nothing is left, the next one works, and it can be resumed."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest
from harness.command import invoke, left_of, start, until, wait_for

from kfp_pytorch.local import lifecycle

PIPELINES = Path(__file__).parents[1] / "small_pipelines.py"


@pytest.mark.parametrize(
    "numbers",
    [
        (signal.SIGINT, signal.SIGKILL),
        # What comes to a run whose cluster is ended, as in another story here.
        pytest.param((signal.SIGTERM,), marks=pytest.mark.slow),
    ],
)
def test_however_a_run_is_ended_nothing_is_left_and_the_next_one_works(cli, root, numbers):
    for number in numbers:
        process = start("run", f"{PIPELINES}:sleeping", "--local", "--json", root=root)
        wait_for(process, "asleep")
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=120)
        if number == signal.SIGKILL:
            assert process.returncode == -number
        else:
            assert process.returncode == 128 + number
            assert left_of(root) == []
            summary = json.loads(stdout)
            assert summary["status"] == "terminated"
            assert [s["status"] for s in summary["steps"]] == ["terminated"]
            # The job wrote no checkpoint.
            assert "--resume" not in stderr
    again = cli("run", f"{PIPELINES}:greeting", "--local", "--root", root)
    assert again.exit_code == 0, again.stderr
    assert left_of(root) == []


@pytest.mark.slow
def test_kill_9_ends_a_cluster_that_was_to_be_kept_too(root):
    process = start("run", f"{PIPELINES}:sleeping", "--local", "--keep", root=root)
    assert "asleep" in next(line for line in process.stdout if "asleep" in line)
    process.kill()
    process.communicate()
    until(lambda: left_of(root) == [])


def test_a_run_whose_cluster_is_ended_ends_soon_and_says_so(root):
    lifecycle.start_detached(root)
    process = start("run", f"{PIPELINES}:sleeping", "--local", "--json", root=root)
    wait_for(process, "asleep")
    lifecycle.stop(root)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert f"The cluster on {root} was ended" in stderr
    assert "Traceback" not in stderr
    assert json.loads(stdout)["status"] == "terminated"
    assert left_of(root) == []


@pytest.mark.parametrize("after", [0.0, 0.15, 0.3])
def test_ctrl_c_in_the_first_moments_leaves_nothing(root, after):
    process = start("run", "train_and_serve", "--local", root=root)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(after)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    # Before anything of ours runs, Python ends by the signal, or fails to start.
    unborn = process.returncode == -signal.SIGINT or "Fatal Python error" in stderr
    assert unborn or process.returncode == 130
    assert left_of(root) == []


@pytest.mark.parametrize(
    "command",
    [
        ["local", "up"],
        ["run", "train_and_serve", "--local"],
        ["run", "train_and_serve", "--local", "--keep"],
    ],
)
def test_ctrl_c_while_the_cluster_starts_leaves_nothing(root, command):
    process = start(*command, root=root)
    until(lambda: lifecycle.is_locked(root))
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    assert left_of(root) == []


@pytest.mark.slow
def test_resume_keeps_the_runs_identity_and_its_arguments(cli, root, tmp_path):
    what = f"{PIPELINES}:trying"
    (tmp_path / "token.env").write_text("KEY=value")
    options = ("-p", f"marker={tmp_path}/marker", "--secrets", tmp_path / "token.env")
    first = invoke("run", what, "--local", "--json", *options, root=root)
    assert first.returncode == 1
    assert "RuntimeError: the first time fails" in json.loads(first.stdout)["error"]
    second = invoke("run", what, "--local", "--json", "--resume", root=root)
    assert second.returncode == 0, second.stderr
    assert f"options of the run: --secrets {tmp_path}/token.env\n" in second.stderr
    run = json.loads(second.stdout)["run"]
    assert run == json.loads(first.stdout)["run"]
    artifacts = json.loads(second.stdout)["artifacts"]
    assert artifacts == {"result": f"{root}/runs/{run}/once/result"}
    third = cli("run", what, "--local", "--resume", "--root", root)
    assert third.exit_code == 1
    assert "succeeded. Start another without --resume" in third.output
