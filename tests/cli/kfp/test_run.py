"""`kfp-pytorch run` and `upload` on KFP: what a person and a program read."""

from __future__ import annotations

import json
import re

import pytest
from harness.kfp_api.argo import Outcome

LOG = 'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: the reason why\n'


def test_a_run_that_is_waited_for_tells_its_steps_and_ends_with_where_it_is(kfp, server):
    out = kfp("run", ":greeting", "-p", "name=you", "--wait").stdout
    run = server.run()
    lines = out.splitlines()
    assert lines[0] == f"Run {run.key} has started."
    assert lines[1] == f"{server.url}/#/runs/details/{run.key}"
    assert lines[2:7] == [
        "The run is pending.",
        "say: started",
        "say: succeeded in 10.0 s",
        "say-2: started",
        "say-2: succeeded in 10.0 s",
    ]
    assert re.fullmatch(r"greeting \S+ \S+ succeeded after 1m", lines[8])


def test_a_step_that_failed_says_why_and_the_command_fails(kfp, server):
    server.store.outcomes = {"say": Outcome("FAILED", log=LOG)}
    out = kfp("run", ":greeting", "-p", "name=you", "--wait", code=1).stdout
    assert "say: failed in 10.0 s" in out
    assert "  say-2            skipped\n" in out
    assert out.endswith("say failed:\n    Traceback (most recent call last):\n" + _indented(LOG))


def _indented(text):
    return "".join(f"    {line}\n" for line in text.splitlines()[1:])


def test_with_json_stdout_is_the_run_alone(kfp, server):
    server.store.outcomes = {"say": Outcome("FAILED", log=LOG)}
    result = kfp("run", ":greeting", "-p", "name=you", "--wait", "--json", code=1)
    (line,) = result.stdout.splitlines()
    found = json.loads(line)
    assert (found["status"], found["failed"]) == ("failed", "say")
    assert found["error"] == "ValueError: the reason why"
    assert found["steps"][0] == {
        "name": "say",
        "label": "say",
        "status": "failed",
        "seconds": 10.0,
        "cached": False,
        "attempts": 1,
    }
    assert "say: failed" in result.stderr


def test_parameters_are_taken_from_a_file_and_from_the_command_line_before_it(
    as_json, server, tmp_path
):
    file = tmp_path / "parameters.yaml"
    file.write_text("name: you\ntimes: 3\nrate: 1e-3\ntags: [a]\n")
    as_json("run", ":greeting", "--parameters", file, "-p", "times=4")
    given = server.run().answer()["runtime_config"]["parameters"]
    assert given == {"name": "you", "times": 4, "rate": 0.001, "tags": ["a"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [("- a", "it takes a mapping of names to values"), ("a: [", "cannot be read")],
)
def test_a_file_without_parameters_is_refused(kfp, server, tmp_path, text, message):
    (tmp_path / "p.yaml").write_text(text)
    result = kfp("run", ":greeting", "--parameters", tmp_path / "p.yaml", code=1)
    assert message in result.stderr


def test_what_does_not_fit_is_told_before_the_call_as_json_too(as_json, server):
    found = as_json("run", ":greeting", "-p", "nope=1", code=1)
    assert found["status"] == "failed"
    assert "has no parameter 'nope'" in found["error"]
    assert server.asked("/runs") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--keep"], "--keep is for a run here"),
        (["--cpu"], "--cpu is for --local"),
        (["--local", "--wait"], "--wait is for a run on KFP"),
        (["--local", "--experiment", "x"], "--experiment is for a run on KFP"),
        (["--local", "--host", "x"], "--host is for a run on KFP"),
    ],
)
def test_an_option_of_another_place_is_refused(kfp, arguments, message):
    assert message in kfp("run", ":greeting", *arguments, code=2).stderr


def test_a_pipeline_is_uploaded_once(kfp, as_json):
    first = kfp("upload", ":greeting").stdout
    assert "of pipeline greeting is uploaded.\nhttp" in first
    again = as_json("upload", ":greeting")
    assert again["uploaded"] is False
    assert again["name"] in first


def test_a_compiled_file_is_refused_for_an_older_kfp(kfp, as_json, tmp_path):
    output = tmp_path / "a.yaml"
    words = kfp("compile", "train_and_serve", "--kfp-version", "2.14", "--output", output, code=1)
    assert "needs KFP 2.15 or later" in words.stderr
    assert not output.exists()
    found = as_json("compile", "train_and_serve", "--kfp-version", "2.15", "--output", output)
    (package,) = found["packages"]
    assert package["bytes"] == output.stat().st_size
