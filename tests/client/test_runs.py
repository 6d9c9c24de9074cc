"""Runs on KFP: started once, followed to the end, and their failure explained."""

from __future__ import annotations

import kfp
import pytest
from harness.faults.actions import Answer, Reset
from harness.faults.plan import Fault
from harness.kfp_api.argo import Outcome
from harness.kfp_api.pipelines import greeting, looping, retrying

from kfp_pytorch.client import Client, ClientError, ConflictError, NotFoundError
from kfp_pytorch.pipelines import train_and_serve

LOG = """\
I1128 22:16:10.852238      14 launcher_v2.go:400] starting
asleep
{words}
I1128 22:16:20.852238      14 launcher_v2.go:400] publishing
F1128 22:16:20.852238      14 main.go:60] failed to execute component: exit status 1
time="2026-11-28T22:00:00Z" level=info msg="sub-process exited" argo=true error="<nil>"
Error: exit status 1
"""
TRACEBACK = """\
Traceback (most recent call last):
  File "/usr/lib/python3.12/site-packages/kfp/dsl/executor_main.py", line 109, in executor_main
    output_file = executor.execute()
  File "/tmp/ephemeral_component.py", line 9, in say
    raise ValueError('the reason why')
ValueError: the reason why"""
MESSAGE = """\
pytorch_job failed.
The job x failed: BackoffLimitExceeded.

Pod x-worker-0: exit code 1."""
YOU = {"name": "you"}


def test_a_run_is_followed_step_by_step_to_its_end(server, client):
    told = []
    run = client.run(greeting, YOU)
    assert (run.status, run.steps) == ("pending", ())
    ended = client.wait(run, tell=told.append)
    assert ended.status == "succeeded"
    assert [(s.label, s.status, s.seconds) for s in ended.steps] == [
        ("say", "succeeded", 10),
        ("say-2", "succeeded", 10),
    ]
    assert [each.status for each in told] == ["pending", *["running"] * 5, "succeeded"]
    assert ended.url == f"{server.url}/#/runs/details/{run.run_id}"


def test_the_run_says_what_was_asked_for(server, client):
    given = {"name": "you", "times": "3", "rate": 2, "tags": ["a"]}
    run = client.run(
        greeting,
        given,
        name="mine",
        experiment="trials",
        pipeline_root="s3://bucket/root",
        service_account="trainer",
    )
    (held,) = server.store.runs.values()
    body = held.answer()
    assert (body["display_name"], body["service_account"]) == ("mine", "trainer")
    assert body["runtime_config"] == {
        "parameters": {"name": "you", "times": 3, "rate": 2.0, "tags": ["a"]},
        "pipeline_root": "s3://bucket/root",
    }
    experiments = {e["experiment_id"]: e["display_name"] for e in server.store.experiments.values()}
    assert experiments[run.experiment_id] == "trials"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "greeting needs -p name="),
        ({"name": "you", "nope": 1}, "has no parameter 'nope'"),
        ({"name": "you", "times": "many"}, "Parameter times is an integer"),
        ({"name": "you", "times": 1.5}, "Parameter times is an integer"),
        ({"name": "you", "rate": float("nan")}, "rate"),
        ({"name": 3}, "Parameter name is a string, and 3 is none"),
        ({"name": "you", "tags": [None]}, "tags holds null"),
        ({"name": "you", "tags": {object()}}, "cannot be sent as JSON"),
    ],
)
def test_arguments_are_checked_before_the_call(server, client, arguments, message):
    with pytest.raises(ClientError, match=message):
        client.run(greeting, arguments)
    assert server.asked("/runs") == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"arguments": {"name": "é" * 70_000}}, "have 140,012 bytes.*130,000 at most"),
        ({"arguments": YOU, "service_account": "No One"}, "The service account is 'No One'"),
    ],
)
def test_what_no_pod_could_start_with_is_refused_before_anything_is_made(
    server, client, given, message
):
    with pytest.raises(ClientError, match=message):
        client.run(greeting, **given, experiment="new")
    with pytest.raises(ClientError, match=message):
        client.schedule(greeting, "nightly", **given, every_s=60)
    assert server.store.runs == server.store.pipelines == server.store.recurring == {}
    assert server.asked("/experiments") == 0


def test_a_pipeline_that_was_uploaded_is_run_by_its_version_and_another_is_sent(server, client):
    first = client.run(greeting, YOU)
    version = client.upload(greeting)
    second = client.run(greeting, YOU)
    bodies = [run.answer() for run in server.store.runs.values()]
    assert "pipeline_spec" in bodies[0]
    assert bodies[1]["pipeline_version_reference"]["pipeline_version_id"] == version.version_id
    assert client.wait(first).steps == client.wait(second).steps


@pytest.mark.parametrize("words", [TRACEBACK, MESSAGE], ids=["a traceback", "a launcher's message"])
@pytest.mark.parametrize("logs_at", ["api", "ui"])
def test_why_a_step_failed_is_read_from_its_log(serve, words, logs_at):
    server = serve(logs_at=logs_at)
    server.store.outcomes = {"say-2": Outcome("FAILED", log=LOG.format(words=words))}
    client = Client(server.url)
    ended = client.wait(client.run(greeting, YOU))
    assert (ended.status, ended.failed) == ("failed", "say-2")
    if words == MESSAGE:
        assert ended.error == "The job x failed: BackoffLimitExceeded."
        assert ended.diagnosis.endswith("Pod x-worker-0: exit code 1.")
    else:
        assert ended.error == "ValueError: the reason why"
        assert "executor_main" not in ended.diagnosis
    assert client.get(ended.run_id) == ended


def test_a_run_that_failed_before_kfp_says_which_step_did_is_looked_at_again(serve):
    server = serve(late=3)
    server.store.outcomes = {"say": Outcome("FAILED", log=LOG.format(words=TRACEBACK))}
    client = Client(server.url)
    ended = client.wait(client.run(greeting, YOU))
    assert (ended.status, ended.failed, ended.alive) == ("failed", "say", ())
    assert ended.error == "ValueError: the reason why"
    server.api.late = 3
    assert client.get(ended.run_id) == ended


def test_where_kfp_never_says_which_step_failed_that_is_said(serve):
    server = serve(late=1_000)
    server.store.outcomes = {"say": Outcome("FAILED", log=LOG.format(words=TRACEBACK))}
    client = Client(server.url)
    ended = client.wait(client.run(greeting, YOU))
    assert (ended.status, ended.failed) == ("failed", "")
    assert "KFP calls the run FAILED, but executor, " in ended.error
    server.api._tasks = {}
    assert client.get(ended.run_id).error.startswith("KFP does not say which step failed; see ")


def test_of_several_attempts_the_last_is_read_whatever_kfp_calls_its_pod(server, client):
    server.store.outcomes = {"say": Outcome("FAILED", log=LOG.format(words="no memory"))}
    ended = client.wait(client.run(retrying))
    assert ended.steps[0].attempts == 3
    assert ended.error == "asleep\nno memory"


def test_a_driver_that_failed_has_its_log_read(server, client):
    server.store.outcomes = {"say": Outcome(driver="FAILED")}
    ended = client.wait(client.run(greeting, YOU))
    assert (ended.status, ended.failed) == ("failed", "say")
    assert "kubectl logs -l pipeline/runid=" in ended.error


def test_where_no_log_can_be_read_it_says_where_to_look(serve):
    server = serve(logs_at="")
    server.store.outcomes = {"say": Outcome("FAILED", log="x")}
    client = Client(server.url)
    ended = client.wait(client.run(greeting, YOU))
    assert f"kubectl logs -l pipeline/runid={ended.run_id} -c main" in ended.error


def test_the_server_may_fail_while_a_run_is_followed(server, client):
    run = client.run(greeting, YOU)
    path = f"/apis/v2beta1/runs/{run.run_id}"
    server.faults.add(Fault(Reset(), path=path, skip=1, times=2))
    server.faults.add(Fault(Answer(502, body="bad gateway"), path=path, skip=1, times=3))
    assert client.wait(run).status == "succeeded"


def test_a_run_is_found_by_id_beginning_name_or_as_the_latest(server, client):
    run = client.run(greeting, YOU, name="mine")
    for asked in (run.run_id, run.run_id[:8], "mine", "latest"):
        assert client.get(asked).run_id == run.run_id
    client.run(greeting, YOU, name="mine")
    with pytest.raises(ClientError, match="2 runs are called 'mine'"):
        client.get("mine")
    with pytest.raises(NotFoundError, match="There is no run 'other'"):
        client.get("other")


@pytest.mark.parametrize("asked", ["", " "])
def test_an_empty_name_is_no_run_and_no_schedule_not_even_the_only_one(server, client, asked):
    client.run(greeting, YOU)
    client.schedule(greeting, "only", YOU, every_s=60)
    with pytest.raises(ClientError, match="The run has no name"):
        client.delete(asked)
    with pytest.raises(ClientError, match="The schedule has no name"):
        client.delete_schedule(asked)
    assert (len(server.store.runs), len(server.store.recurring)) == (1, 1)


def test_runs_are_listed_over_pages_and_by_experiment(server, client):
    for number in range(3):
        client.run(greeting, YOU, name=str(number), experiment="a" if number else "b")
    assert [run.name for run in client.runs()] == ["2", "1", "0"]
    assert [run.name for run in client.runs(most=1)] == ["2"]
    assert [run.name for run in client.runs(experiment="a")] == ["2", "1"]
    with pytest.raises(NotFoundError, match="There is no experiment 'c'"):
        client.runs(experiment="c")


def test_pages_are_followed_to_the_last(server, client, monkeypatch):
    from kfp_pytorch.client import pages

    for number in range(5):
        client.run(greeting, YOU, name=str(number))
    monkeypatch.setattr(pages, "_MOST", 2)
    assert [run.name for run in client.runs(most=0)] == ["4", "3", "2", "1", "0"]


def test_a_terminated_run_is_called_so_and_not_terminated_twice(server, client):
    server.store.outcomes = {"say": Outcome(ticks=100)}
    run = client.run(greeting, YOU)
    for _ in range(4):
        client.get(run.run_id)
    client.terminate(run.run_id)
    ended = client.wait(run)
    assert (ended.status, ended.state, ended.error) == ("terminated", "FAILED", "")
    with pytest.raises(ConflictError, match=r"\(terminated\), and KFP terminates no such run"):
        client.terminate(run.run_id)


def test_a_failed_run_is_retried_and_one_that_succeeded_is_not(server, client):
    server.store.outcomes["say-2"] = Outcome("FAILED", log="x")
    run = client.run(greeting, YOU)
    assert client.wait(run).status == "failed"
    server.store.outcomes["say-2"] = Outcome()
    client.retry(run.run_id)
    ended = client.wait(run)
    assert ended.status == "succeeded"
    with pytest.raises(ConflictError, match="is succeeded; only one that failed"):
        client.retry(run.run_id)


def test_a_run_that_kfp_calls_failed_while_its_job_goes_on_is_said_so_and_delete_ends_it(
    server, client
):
    server.store.outcomes = {"pytorch-job": Outcome(ticks=100)}
    run = client.run(train_and_serve, {"image": "x"})
    for _ in range(6):
        client.get(run.run_id)
    server.run().overflow(server.store.time())
    found = client.get(run.run_id)
    assert found.status == "failed"
    assert {"pytorch-job", "root"} <= set(found.alive)
    assert "KFP calls the run FAILED, but" in found.error
    assert f"`kfp-pytorch runs delete {run.run_id}`" in found.error
    for act in (client.terminate, client.retry):
        with pytest.raises(ConflictError, match="pods and jobs may go on"):
            act(run.run_id)
    client.delete(run.run_id)
    assert server.store.runs == {}
    with pytest.raises(NotFoundError):
        client.delete(run.run_id)


def test_a_run_in_an_archived_experiment_is_refused_with_the_way_out(server, client):
    (experiment,) = server.store.experiments.values()
    experiment["storage_state"] = "ARCHIVED"
    with pytest.raises(ClientError, match="'Default' is archived"):
        client.run(greeting, YOU)


def test_the_loops_of_a_run_are_told_apart(client):
    ended = client.wait(client.run(looping))
    labels = {step.label for step in ended.steps}
    assert labels == {"say", "inner/say", "say-2[0]", "say-2[1]", "say-3[0]", "say-3[1]"}


def test_each_shipped_pipeline_is_a_function_for_kfps_own_client(server, client):
    own = kfp.Client(server.url)
    started = own.create_run_from_pipeline_func(train_and_serve, arguments={"image": "x"})
    assert client.wait(started.run_id).status == "succeeded"
