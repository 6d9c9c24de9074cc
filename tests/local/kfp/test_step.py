"""What surrounds a step's program on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from kfp_pytorch.local.kfp import step
from kfp_pytorch.local.processes.temporary import short_folder


def started(setting: step.Setting, *command: str, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, step.SETTING_ENV: json.dumps(asdict(setting)), **variables}
    return subprocess.Popen(
        [sys.executable, "-m", step.__name__, "greet", "--", *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(stdout: str) -> list[dict[str, Any]]:
    return [json.loads(line.partition(step.EVENT_MARK)[2]) for line in stdout.splitlines()]


def test_a_step_whose_pod_is_refused_says_why_and_does_not_run(
    api_server: Any, tmp_path: Path
) -> None:
    setting = step.Setting("r", str(tmp_path), "nowhere", "wf", "u", api_server.url)
    ran = tmp_path / "ran"
    refused = started(setting, "touch", str(ran))
    stdout, stderr = refused.communicate()
    assert refused.returncode == 1
    events = told(stdout)
    assert [event["event"] for event in events] == ["started", "ended"]
    assert 'namespaces "nowhere" not found' in events[1]["stderr"]
    assert "Traceback" not in stderr
    assert not ran.exists()


@pytest.mark.parametrize("number", [0, signal.SIGTERM])
def test_a_step_leaves_no_temporary_file_however_it_ends(tmp_path: Path, number: int) -> None:
    temporary = Path(tempfile.mkdtemp(dir=short_folder()))
    # As KFP's own command does.
    script = 'folder=$(mktemp -d); echo "made $folder"; [ "$0" = 0 ] || exec sleep 60'
    setting = step.Setting("r", str(tmp_path))
    running = started(setting, "sh", "-c", script, str(number), TMPDIR=str(temporary))
    assert running.stdout is not None
    made = next(line for line in running.stdout if "made " in line)
    assert f"made {temporary}/" in made
    if number:
        running.send_signal(number)
    running.communicate()
    temporary.rmdir()


@pytest.mark.parametrize("given", ["", "file", "output"])
def test_a_program_that_gives_no_value_of_an_output_has_failed_as_with_kfp(
    tmp_path: Path, given: str
) -> None:
    output, word = tmp_path / "executor_output.json", tmp_path / "word"
    script = {
        "": "true",
        "file": f"echo w > {word}",
        "output": f"""echo '{{"parameterValues": {{"word": "w"}}}}' > {output}""",
    }[given]
    declared = {
        "outputFile": str(output),
        "parameters": {"word": {"outputFile": str(word)}},
        "artifacts": {"page": {"artifacts": [{"uri": str(tmp_path / "page")}]}},
    }
    executor_input = json.dumps({"outputs": declared})
    setting = step.Setting("r", str(tmp_path))
    command = ("sh", "-c", script, "--executor_input", executor_input)
    stdout, _ = started(setting, *command).communicate()
    ended = told(stdout)[-1]
    assert ended["exit"] == (0 if given else 1)
    assert ("gave no value of its output word" in ended["stderr"]) == (not given)


def test_each_attempt_of_a_step_begins_with_no_outputs_as_in_a_new_container(
    tmp_path: Path,
) -> None:
    output, folder = tmp_path / "executor_output.json", tmp_path / "data"
    output.write_text('{"parameterValues": {"word": "of the attempt before"}}')
    folder.mkdir()
    (folder / "left").touch()
    declared = {
        "outputFile": str(output),
        "artifacts": {"data": {"artifacts": [{"uri": str(folder)}]}},
    }
    executor_input = json.dumps({"outputs": declared})
    command = ("sh", "-c", f"mkdir {folder}", "--executor_input", executor_input)
    stdout, _ = started(step.Setting("r", str(tmp_path)), *command).communicate()
    ended = told(stdout)[-1]
    assert (ended["exit"], ended["outputs"]["parameters"]) == (0, {})
    assert not any(folder.iterdir())
