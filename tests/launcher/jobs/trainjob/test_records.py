"""The state of TrainJobs as a real Trainer wrote them, at every event of a record."""

from __future__ import annotations

from itertools import groupby

import pytest
from harness.objects import records

from kfp_pytorch.launcher.jobs.trainjob import state
from kfp_pytorch.launcher.kubernetes.objects import Object, dig

pytestmark = pytest.mark.skipif(not records.FOLDER.exists(), reason="no records of a real cluster")

NEW = "unacknowledged starting"
RUN = "running starting"
# For each record and job: the phases that it was in. A job that runs is starting again while one of
# its pods ends or is restarted.
READ = {
    ("badcmd", "badcmd"): f"{NEW} failed",
    ("badimage", "badimage"): f"{NEW} deleted",
    ("deadline-suspend", "deadline-suspend"): "queued starting running failed",
    ("deadline", "deadline"): f"{NEW} running failed",
    ("deleted", "deleted"): f"{NEW} running deleted",
    ("evicted-retry", "evicted-retry"): f"{NEW} {RUN} {RUN} succeeded",
    ("evicted", "evicted"): f"{NEW} {RUN} {RUN} succeeded",
    ("fail-backoff1", "fail-backoff1"): f"{NEW} {RUN} failed",
    ("fail-default", "fail-default"): f"{NEW} {RUN} {RUN} failed",
    ("fail-retry-two", "fail-retry-two"): f"{NEW} {RUN} {RUN} {RUN} succeeded",
    ("fail-retry", "fail-retry"): f"{NEW} {RUN} {RUN} {RUN} failed",
    ("finalize", "finalize"): f"{NEW} running deleting deleted",
    ("immut", "immut"): f"{NEW} queued deleted",
    ("immut", "immut-zero"): "unacknowledged succeeded deleted",
    ("immut", "immut-unknown"): f"{NEW} {RUN} succeeded deleted",
    # The first failure is the end for a launcher: the Trainer starts the job again.
    ("js-deleted", "js-deleted"): f"{NEW} {RUN} failed starting {RUN} {RUN} failed deleted",
    ("kubelet-evicted", "kubelet-evicted"): f"{NEW} {RUN} {RUN} failed",
    ("notrainer", "notrainer"): f"{NEW} succeeded deleted",
    ("nsruntime", "nsruntime"): f"{NEW} succeeded deleted",
    ("ok", "ok"): f"{NEW} {RUN} succeeded deleted",
    ("oom", "oom"): f"{NEW} failed",
    ("rtgone", "rtgone"): "queued deleted",
    ("suspend", "suspend"): f"queued starting running queued starting {RUN} succeeded",
    ("ttl-fail", "ttl-fail"): f"{NEW} {RUN} failed starting {NEW} {RUN} failed starting {NEW} "
    f"{RUN} failed starting {RUN} failed deleted",
    ("ttl-ok", "ttl-ok"): f"{NEW} {RUN} succeeded",
    ("two", "two"): f"{NEW} {RUN} {RUN} succeeded",
    ("twofail-default", "twofail-default"): f"{NEW} {RUN} {RUN} {RUN} deleted",
    ("twotorch", "twotorch"): f"{NEW} {RUN} succeeded",
    ("unsched", "unsched"): f"{NEW} deleted",
    ("webhookdown", "webhookdown-b"): f"{NEW} {RUN} succeeded deleted",
}
WATCHED = ("ADDED", "MODIFIED", "DELETED")


@pytest.mark.parametrize(("record", "job"), READ)
def test_every_event_of_a_real_job_is_read_as_what_happened(record: str, job: str) -> None:
    phases = []
    for event in records.events(f"trainjob/{record}"):
        if event["type"] in WATCHED and _is(event, "TrainJob", job):
            read = state.read_state(event["object"])
            phase = "deleting" if read.deleting else read.phase.value
            phases.append("deleted" if event["type"] == "DELETED" else phase)
    assert " ".join(phase for phase, _ in groupby(phases)) == READ[record, job]


def test_every_record_of_a_job_is_read() -> None:
    listed = {path.name.partition(".")[0] for path in (records.FOLDER / "trainjob").iterdir()}
    assert {record for record, _ in READ} == listed


@pytest.mark.parametrize("record", ["deadline", "deadline-suspend"])
def test_the_operators_deadline_is_read_as_one(record: str) -> None:
    last = records.states(records.events(f"trainjob/{record}"), "TrainJob", record)[-1]
    assert state.read_state(last).past_deadline


@pytest.mark.parametrize(("record", "first"), [("suspend", 2), ("fail-retry-two", 3), ("two", 1)])
def test_the_first_pod_is_the_newest_of_node_0(record: str, first: int) -> None:
    job: Object = {}
    pods: dict[str, Object] = {}
    found = []
    for event in records.events(f"trainjob/{record}"):
        if event["type"] in WATCHED and _is(event, "TrainJob", record):
            job = event["object"]
        if event["type"] in WATCHED and event["kind"] == "Pod":
            pods[event["object"]["metadata"]["name"]] = event["object"]
            assert state.owns_pod(event["object"], job)
            found.append(state.first_pod(job, list(pods.values())))
    newest = [each for each, _ in groupby(found)]
    assert len(newest) == first
    assert all(each.startswith(f"{state.node_name(job, 0)}-") for each in newest)


def test_pods_of_an_earlier_job_of_the_name_are_not_this_jobs() -> None:
    found = records.events("trainjob/ok")
    job = records.states(found, "TrainJob", "ok")[-1]
    pod = next(event["object"] for event in found if event["kind"] == "Pod")
    made = dig(pod, "metadata", "creationTimestamp")
    later = {
        **job,
        "metadata": {**job["metadata"], "creationTimestamp": made.replace("T21", "T22")},
    }
    assert state.owns_pod(pod, job)
    assert not state.owns_pod(pod, later)


def test_each_event_of_what_makes_the_pods_is_of_a_name_that_is_read() -> None:
    job = "fail-default"
    about = {
        dig(event["object"], "involvedObject", "name")
        for event in records.events(f"trainjob/{job}")
        if event["kind"] == "Event" and dig(event["object"], "involvedObject", "kind") != "Pod"
    }
    assert about <= {*state.makers(job), "torch-distributed"}


def _is(event: Object, kind: str, name: str) -> bool:
    return bool(event["kind"] == kind and event["object"]["metadata"]["name"] == name)
