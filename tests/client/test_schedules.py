"""Schedules are made, changed, switched and deleted by their names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from harness.faults.actions import Answer
from harness.faults.plan import Fault
from harness.kfp_api.argo import Outcome
from harness.kfp_api.pipelines import greeting

from kfp_pytorch.client import Client, ClientError, NotFoundError

YOU = {"name": "you"}
NIGHTLY = {"arguments": YOU, "cron": "0 2 * * *"}
SOON = datetime.now(UTC) + timedelta(days=1)
# Of a time zone west of UTC, where the year is 10000 by then.
LATEST = "9999-12-31T23:00:00-12:00"


def bodies(server):
    return list(server.store.recurring.values())


def test_a_schedule_is_made_of_a_cron_expression_with_its_seconds(server, client):
    made = client.schedule(greeting, "nightly", **NIGHTLY, experiment="trials")
    (body,) = bodies(server)
    (version,) = server.store.versions.values()
    assert body["trigger"] == {"cron_schedule": {"cron": "0 0 2 * * *"}}
    assert body["runtime_config"] == {"parameters": YOU}
    assert body["no_catchup"] is True
    assert body["max_concurrency"] == "1"
    assert (
        body["pipeline_version_reference"]["pipeline_version_id"] == version["pipeline_version_id"]
    )
    assert (made.change, made.enabled, made.cron, made.catch_up) == (
        "created",
        True,
        "0 0 2 * * *",
        False,
    )
    assert made.url == f"{server.url}/#/recurringrun/details/{made.schedule_id}"


def test_an_interval_has_a_start_and_an_end_in_utc(server, client):
    start = datetime.fromisoformat("2030-01-31T08:00+02:00")
    made = client.schedule(
        greeting,
        "often",
        YOU,
        every_s=21_600,
        start=start,
        end=start + timedelta(days=1),
        max_concurrency=3,
        catch_up=True,
        enabled=False,
        pipeline_root="s3://b/r",
        service_account="trainer",
    )
    (body,) = bodies(server)
    assert body["trigger"] == {
        "periodic_schedule": {
            "interval_second": "21600",
            "start_time": "2030-01-31T06:00:00Z",
            "end_time": "2030-02-01T06:00:00Z",
        }
    }
    assert (body["mode"], body["max_concurrency"]) == ("DISABLE", "3")
    assert "no_catchup" not in body
    assert body["service_account"] == "trainer"
    assert body["runtime_config"]["pipeline_root"] == "s3://b/r"
    assert (made.every_s, made.start, made.enabled) == (21_600, start, False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "a cron expression or an interval: give one of both"),
        ({"cron": "0 2 * * *", "every_s": 60}, "a cron expression or an interval"),
        ({"cron": "0 2 * *"}, "has 4 fields"),
        ({"every_s": -1}, "The interval is -1 s"),
        ({"every_s": 10**12}, "must be from 1 s to 316,224,000 s, 10 years"),
        ({"every_s": 60, "start": datetime.fromisoformat(LATEST)}, "between the years 1 and 9999"),
        ({"every_s": 60, "max_concurrency": 11}, "it must be from 1 to 10"),
        ({"every_s": 60, "max_concurrency": 0}, "it must be from 1 to 10"),
        ({"every_s": 60, "start": SOON.replace(tzinfo=None)}, "has no time zone"),
        ({"every_s": 60, "start": SOON, "end": SOON}, "not after the start"),
        ({"every_s": 60, "end": SOON - timedelta(days=2)}, "is past"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_sent(server, client, given, message):
    with pytest.raises(ClientError, match=message):
        client.schedule(greeting, "x", YOU, **given)
    assert server.store.pipelines == server.store.recurring == {}


def test_a_schedule_that_is_just_so_is_left_alone_and_switched_where_that_differs(server, client):
    first = client.schedule(greeting, "nightly", **NIGHTLY)
    assert client.schedule(greeting, "nightly", **NIGHTLY).change == "unchanged"
    assert client.schedule(greeting, "nightly", **NIGHTLY, enabled=False).change == "disabled"
    again = client.schedule(greeting, "nightly", **NIGHTLY)
    assert (again.change, again.enabled, again.schedule_id) == ("enabled", True, first.schedule_id)


def test_a_change_makes_a_new_schedule_and_lets_runs_of_the_old_one_go_on(server, client):
    server.store.outcomes = {"say": Outcome(ticks=1)}
    first = client.schedule(greeting, "nightly", **NIGHTLY)
    run = server.store.fire(first.schedule_id)
    second = client.schedule(greeting, "nightly", {"name": "all"}, cron="0 2 * * *")
    assert second.change == "replaced"
    assert [body["recurring_run_id"] for body in bodies(server)] == [second.schedule_id]
    assert client.wait(run.key).status == "succeeded"


def test_a_change_that_kfp_refuses_leaves_the_old_schedule_enabled(server, client):
    first = client.schedule(greeting, "nightly", **NIGHTLY)
    refusal = Answer(400, body='{"code": 3, "message": "no"}')
    server.faults.add(Fault(refusal, verb="create", path="/apis/v2beta1/recurringruns"))
    with pytest.raises(ClientError, match="KFP refuses it: no"):
        client.schedule(greeting, "nightly", {"name": "all"}, cron="0 2 * * *")
    (body,) = bodies(server)
    assert (body["recurring_run_id"], body["mode"]) == (first.schedule_id, "ENABLE")


def test_kfp_before_2_16_ends_runs_with_their_schedule_so_it_is_kept_while_one_goes_on(serve):
    server = serve("2.15.2")
    client = Client(server.url)
    first = client.schedule(greeting, "nightly", **NIGHTLY)
    run = server.store.fire(first.schedule_id)
    for act in (
        lambda: client.schedule(greeting, "nightly", {"name": "all"}, cron="0 2 * * *"),
        lambda: client.delete_schedule("nightly"),
    ):
        with pytest.raises(ClientError, match=r"KFP 2\.15\.2 deletes the runs of a schedule"):
            act()
    assert [body["mode"] for body in bodies(server)] == ["ENABLE"]
    assert client.wait(run.key).status == "succeeded"
    assert client.delete_schedule("nightly").name == "nightly"
    assert bodies(server) == []


def test_with_runs_a_schedule_is_deleted_and_what_it_started_ends(server, client):
    made = client.schedule(greeting, "nightly", **NIGHTLY)
    run = server.store.fire(made.schedule_id)
    assert [each.run_id for each in client.runs(schedule="nightly")] == [run.key]
    client.delete_schedule("nightly", with_runs=True)
    for _ in range(9):
        state = client.get(run.key).status
    assert state == "pending"


def test_several_schedules_of_one_name_are_told_apart_by_their_ids(server, client):
    first = client.schedule(greeting, "nightly", **NIGHTLY)
    (body,) = bodies(server)
    other = server.store.create_recurring({**body, "max_concurrency": 1})
    with pytest.raises(ClientError, match="2 schedules are called 'nightly'"):
        client.disable_schedule("nightly")
    client.delete_schedule(other["recurring_run_id"])
    assert client.disable_schedule("nightly").schedule_id == first.schedule_id
    assert not client.schedules()[0].enabled


def test_a_schedule_that_is_not_there_is_told_with_those_that_are(client):
    client.schedule(greeting, "nightly", **NIGHTLY)
    for act in (client.enable_schedule, client.disable_schedule, client.delete_schedule):
        with pytest.raises(NotFoundError, match=r"no schedule 'nightl'\. There are: nightly"):
            act("nightl")
