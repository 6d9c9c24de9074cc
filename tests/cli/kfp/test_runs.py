"""`kfp-pytorch runs`: what a person and a program read of the runs on KFP."""

from __future__ import annotations

import pytest
from harness.kfp_api.argo import Outcome


@pytest.fixture
def run(as_json):
    """Starts a run; gives its id."""

    def start(*options):
        return as_json("run", ":greeting", "-p", "name=you", *options)["run_id"]

    return start


def test_runs_are_listed_in_columns(kfp, as_json, run):
    assert kfp("runs", "list").stdout == "There are no runs.\n"
    first, second = run("--name", "first"), run("--name", "second")
    lines = kfp("runs", "list").stdout.splitlines()
    assert lines[0].split() == ["ID", "STATUS", "AGE", "NAME"]
    assert [line.split()[0] for line in lines[1:]] == [second, first]
    found = as_json("runs", "list", "--limit", "1")["runs"]
    assert [(each["run_id"], each["status"]) for each in found] == [(second, "pending")]


def test_a_run_is_shown_with_its_steps_and_followed(kfp, as_json, run):
    key = run()
    shown = kfp("runs", "show", key).stdout
    assert f"  id  {key}\n" in shown
    assert "say: started" in kfp("runs", "show", "latest", "--wait").stdout
    assert [s["status"] for s in as_json("runs", "show", key)["steps"]] == ["succeeded"] * 2


def test_a_run_is_terminated_retried_and_deleted(kfp, as_json, server, run):
    server.store.outcomes = {"say": Outcome(ticks=100)}
    key = run()
    kfp("runs", "show", key)
    assert kfp("runs", "terminate", key).stdout == f"Run {key} is being terminated.\n"
    assert as_json("runs", "show", key, "--wait", code=1)["status"] == "terminated"
    assert "KFP terminates no such run" in kfp("runs", "terminate", key, code=1).stderr
    assert as_json("runs", "retry", key) == {"run_id": key, "done": "retry"}
    assert kfp("runs", "delete", key).stdout == f"Run {key} is deleted.\n"
    assert "There is no run 'latest'" in kfp("runs", "show", "latest", code=1).stderr


def test_a_run_that_kfp_calls_failed_while_its_job_goes_on_is_shown_so(kfp, server, run):
    server.store.outcomes = {"say": Outcome(ticks=100)}
    key = run()
    for _ in range(4):
        kfp("runs", "show", key)
    server.run().overflow(server.store.time())
    words = " ".join(kfp("runs", "show", key).stdout.split())
    assert "KFP calls the run FAILED, but" in words
    assert f"`kfp-pytorch runs delete {key}` deletes the run's Workflow" in words
