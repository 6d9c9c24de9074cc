"""`kfp-pytorch logs` of runs on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from concurrent import futures
from pathlib import Path

import pytest
from harness.command import COMMAND, invoke, left_of, start, until

from kfp_pytorch.cli.logs.local import container_lines
from kfp_pytorch.local import lifecycle

PIPELINES = Path(__file__).with_name("pipelines.py")


@pytest.fixture(scope="module")
def ran(cli, tmp_path_factory):
    """A run in whose loop an iteration fails: what it said, and the folder of all runs."""
    root = tmp_path_factory.mktemp("ran") / "root"
    process = cli("run", f"{PIPELINES}:telling_apart", "--local", "--root", root)
    assert process.exit_code == 1, process.stdout
    yield process, root
    assert left_of(root) == []


@pytest.fixture
def logs(cli, ran):
    def asked(*arguments):
        return cli("logs", *arguments, "--root", ran[1])

    return asked


def test_what_has_logs_is_listed_and_the_log_of_the_failing_step_is_shown(logs):
    result = logs("latest")
    assert result.exit_code == 0, result.output
    assert "ValueError: 0.2 is too large" in result.stdout
    assert "lr is 0.2" in result.stdout
    assert "lr is 0.1" not in result.stdout
    assert "[KFP Executor" not in result.stdout
    listed = [line.split() for line in result.stderr.splitlines()]
    assert ["pytorch-job", "succeeded"] in listed
    assert ["train:lr=0.1", "succeeded"] in listed
    assert ["train:lr=0.2", "failed"] in listed
    assert [line[:2] for line in listed if line[0] == "rank"] == [["rank", "0:"], ["rank", "1:"]]


def test_the_end_of_a_run_shows_the_names_that_the_pipeline_gives(ran):
    assert re.search(r"pytorch-job .*succeeded  \(talk\)\n", ran[0].stdout)
    assert re.search(r"train:lr=0.1 .*succeeded  \(one rate\)\n", ran[0].stdout)


def test_a_step_is_named_by_task_display_name_or_job_and_an_iteration_by_argument_or_number(
    logs,
):
    assert "master-0 | I am node 0 of 2" in logs("latest", "--step", "pytorch-job").stdout
    assert "I am node 0 of 2" in logs("latest", "--step", "pytorch_job").stdout
    assert logs("latest", "--step", "train:lr=0.1").stdout.count("lr is 0.1") == 1
    assert "I am node 0 of 2" in logs("latest", "--step", "talk").stdout
    assert "lr is 0.1" in logs("latest", "--step", "one rate:lr=0.1").stdout
    both = [logs("latest", "--step", f"train:{number}").stdout for number in (1, 2)]
    assert sorted(re.search("lr is (.*)", text)[1] for text in both) == ["0.1", "0.2"]


def test_a_rank_is_shown_as_its_pod_wrote_it(logs):
    result = logs("latest", "--rank", "1")
    assert result.exit_code == 0, result.output
    first, folder = result.stdout.splitlines()
    assert first == "I am node 1 of 2"
    assert folder.endswith(logs("latest", "--rank", "0").stdout.splitlines()[1].rpartition("/")[2])


def test_a_program_reads_the_steps_and_the_same_lines_as_one_object(logs):
    result = logs("latest", "--json")
    found = json.loads(result.stdout)
    steps = {step["step"]: step for step in found["steps"]}
    assert steps["train:lr=0.2"]["status"] == "failed"
    assert [node["ranks"] for node in steps["pytorch-job"]["nodes"]] == ["rank 0", "rank 1"]
    (log,) = found["logs"]
    assert log["step"] == "train:lr=0.2"
    assert log["lines"] == logs("latest").stdout.splitlines()
    assert "pytorch-job" in result.stderr
    (of_rank,) = json.loads(logs("latest", "--rank", "1", "--json").stdout)["logs"]
    assert of_rank["rank"] == 1
    assert of_rank["pod"].endswith("worker-0")
    assert of_rank["lines"][0] == "I am node 1 of 2"


def test_a_program_that_follows_a_run_reads_the_object_when_it_has_ended(logs):
    for asked in ([], ["--step", "train:lr=0.2"]):
        result = logs("latest", *asked, "-f", "--json")
        (log,) = json.loads(result.stdout)["logs"]
        assert "ValueError: 0.2 is too large" in "\n".join(log["lines"])
        assert "ValueError: 0.2 is too large" in result.stderr


def test_a_run_is_named_by_its_name_folder_or_id(cli, logs, ran, tmp_path):
    (folder,) = (ran[1] / "runs").iterdir()
    run_id = json.loads((folder / "run.json").read_text())["id"]
    wanted = logs("latest", "--rank", "0").stdout
    assert wanted
    assert logs(folder.name, "--rank", "0").stdout == wanted
    assert logs(run_id, "--rank", "0").stdout == wanted
    assert logs(folder.name[:-2], "--rank", "0").stdout == wanted
    assert logs(run_id[:8], "--rank", "0").stdout == wanted
    assert cli("logs", folder, "--rank", "0", "--root", tmp_path).stdout == wanted


def test_without_a_run_all_are_listed_the_newest_first(cli, logs, ran, tmp_path):
    (folder,) = (ran[1] / "runs").iterdir()
    for number, name in enumerate(("older", "oldest"), 1):
        copy = tmp_path / "runs" / name
        copy.mkdir(parents=True)
        copy.joinpath("run.json").write_text(folder.joinpath("run.json").read_text())
        os.utime(copy / "run.json", (-number, -number))
    assert logs().stdout == f"{folder.name}  failed\n"
    listed = json.loads(logs("--json").stdout)
    assert listed == {"runs": [{"run": folder.name, "status": "failed"}]}
    assert [line.split() for line in cli("logs", "--root", tmp_path).stdout.splitlines()] == [
        [folder.name, "killed"]
    ] * 2
    assert "Name a RUN, or `latest`" in logs("-f").stderr
    assert "No run was made in" in cli("logs", "--root", tmp_path / "other").stderr
    assert "may be any of 2 runs in" in cli("logs", "telling", "--root", tmp_path).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nonsuch",), "There is no run 'nonsuch' in "),
        (("nonsuch",), "The newest there: telling-apart-"),
        (("latest", "--step", "nonsuch"), "has no step 'nonsuch'. There are: pytorch-job, train:"),
        (("latest", "--step", "train:3"), "has no step 'train:3'"),
        (("latest", "--step", "train"), "may be any of 2 steps; name one with --step: train:lr=0."),
        (("latest", "--step", "train"), "train:1 to train:2 name them in this order."),
        (("latest", "--step", "train:1", "--rank", "0"), "makes no job"),
        (("latest", "--rank", "2"), "has the ranks 0 to 1, of 2 x 1 processes"),
        (("latest", "--rank", "-1"), "-1 is not in the range x>=0"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(logs, arguments, message):
    result = logs(*arguments)
    assert result.exit_code in (1, 2)
    assert message in result.stderr
    assert result.stdout == ""


def test_the_end_of_a_run_names_the_command_and_where_each_rank_wrote(ran, cli):
    process, root = ran
    (folder,) = (root / "runs").iterdir()
    assert f"  kfp-pytorch logs {folder}\n" in process.stdout
    summary = json.loads((folder / "summary.json").read_text())
    (job,) = summary["jobs"]
    assert [node["ranks"] for node in job["logs"]] == ["rank 0", "rank 1"]
    for number, node in enumerate(job["logs"]):
        assert f"I am node {number} of 2" in Path(node["path"]).read_text()
        (pattern,) = (line for line in process.stdout.splitlines() if f"rank {number}: " in line)
        (found,) = (root / "logs").glob(pattern.rpartition(": ")[2])
        assert found == Path(node["path"])


def test_the_failing_step_comes_first_with_its_message_and_loops_are_told_apart(ran):
    process, _ = ran
    shown = process.stdout.partition("telling-apart failed in ")[2].splitlines()
    assert shown[2].split()[0] == "train:lr=0.2"
    assert shown[3] == "    ValueError: 0.2 is too large"
    table = next(line for line in shown if line.startswith("  Nodes × processes"))
    assert shown[shown.index(table) + 1].startswith("  2 × 1 ")
    assert "apiVersion" not in process.stdout
    assert "--step train:lr=0.2" in shown[4]
    assert {line.split()[0] for line in shown[6:8]} == {"pytorch-job", "train:lr=0.1"}
    assert process.stderr.endswith("\nError: Step train failed.\n")


def test_the_help_comes_at_once(cli):
    program = "import sys; from kfp_pytorch.cli import main; print(*sys.modules, file=sys.stderr)"
    command = [COMMAND[0], "-c", f"{program}\nmain(['logs', '--help'])"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stderr.split()
    heavy = {"kfp", "kubernetes", "urllib3", "torch", "kfp_pytorch.cli.logs.show"}
    assert not heavy & set(loaded)
    assert "--rank" in cli("logs", "--help").output


def test_a_run_that_goes_on_is_followed_to_its_end_and_a_rank_before_its_pod_is_there(
    cli, root, tmp_path
):
    def follow():
        until(lambda: list((root / "runs").glob("*/run.json")))
        whole = start("logs", "latest", "-f", root=root)
        rank = start("logs", "latest", "--step", "pytorch-job", "--rank", "1", "-f", root=root)
        stopped = start("logs", "latest", "--rank", "0", "-f", root=root)
        began = [process.stdout.readline() for process in (rank, stopped)]
        stopped.send_signal(signal.SIGINT)
        ended = [stopped.communicate()]
        # The steps' own lines come as they are written, too.
        live = next((line for line in whole.stdout if "node 0 waits" in line), "")
        for node in ("0", "1"):
            (tmp_path / node).touch()
        ended += [process.communicate() for process in (rank, whole)]
        codes = [process.returncode for process in (stopped, rank, whole)]
        return began, [live, *(out for out, _ in ended)], ended[0][1], codes

    with futures.ThreadPoolExecutor() as pool:
        followed = pool.submit(follow)
        what = f"{PIPELINES}:waiting"
        run = cli("run", what, "--local", "-p", f"folder={tmp_path}", "--root", root)
    began, (live, stopped, rank, whole), said, codes = followed.result()
    assert began == ["node 1 waits\n", "node 0 waits\n"]
    assert live == "  master-0 | node 0 waits\n"
    assert (stopped, rank) == ("", "node 1 goes on\n")
    assert "Traceback" not in said
    assert "  master-0 | node 0 goes on\n" in whole
    assert "pytorch-job: succeeded in " in whole
    assert [run.exit_code, *codes] == [0, 130, 0, 0]


@pytest.mark.slow
def test_of_several_processes_in_a_pod_the_lines_that_torchrun_marks_are_shown(cli, root):
    assert invoke("run", f"{PIPELINES}:processes", "--local", root=root).returncode == 0
    result = cli("logs", "latest", "--rank", "1", "--root", root)
    assert "[default1]:I am one of them\n" in result.stdout
    assert "[default0]" not in result.stdout
    assert "Rank 1 is process 1 of node 0." in result.stderr


def test_a_container_that_started_again_is_read_to_its_end(tmp_path):
    first, second = tmp_path / "0.log", tmp_path / "1.log"
    stamp = b"2025-11-27T12:00:00.5Z stdout"
    first.write_bytes(stamp + b" F one\n" + stamp + b" P tw\n")
    over = iter([False, True])

    def files():
        return [path for path in (first, second) if path.exists()]

    lines = container_lines(files, lambda: next(over))
    assert next(lines) == "one"
    with first.open("ab") as file:
        file.write(stamp + b" F o and more\n")
    second.write_bytes(stamp + b" F three\xff stdout F\n" + stamp + b" F \n")
    assert list(lines) == ["two and more", "three\ufffd stdout F", ""]


@pytest.mark.slow
def test_resume_is_offered_where_a_job_wrote_a_checkpoint(root):
    for save, offered in ((0, False), (1, True)):
        what = f"{PIPELINES}:saving"
        process = start("run", what, "--local", "-p", f"save={save}", root=root)
        assert "asleep" in next(line for line in process.stdout if "asleep" in line)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
        assert ("--resume" in stderr) == offered
        assert "kfp-pytorch logs " in stderr
    assert lifecycle.status(root) is None
