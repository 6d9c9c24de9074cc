"""The state of PyTorchJobs as a real operator wrote them, at every event of a record."""

from __future__ import annotations

from itertools import groupby

import pytest
from harness.objects import records

from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.kubernetes.pod_status import belongs_to, is_terminating, pod_phase

pytestmark = pytest.mark.skipif(not records.FOLDER.exists(), reason="no records of a real cluster")

STARTED = "starting running"
AGAIN = "restarting running"
# For each record and job: the phases that it was in. Where a record begins late, so do they.
READ = {
    ("backoff0", "backoff0"): "failed",
    ("backoff1", "backoff1"): "failed",
    ("backoff2", "backoff2"): f"{STARTED} failed",
    # A command that does not exist: to the operator the pod runs.
    ("badcmd", "badcmd"): "running",
    ("badimage", "badimage"): "starting",
    ("badname-image", "badname-image"): "starting",
    ("badwimage", "badwimage"): f"{STARTED} succeeded",
    ("both-fail-race", "both-fail-race"): "running succeeded",
    ("clean-all", "clean-all"): "running succeeded",
    ("clean-running", "clean-running"): "running succeeded",
    ("deadline", "deadline"): f"{STARTED} failed",
    # These two were deleted after the record's end.
    ("del-running", "del-running"): f"unacknowledged {STARTED}",
    ("del-running-fg", "del-running-fg"): "running succeeded",
    ("elastic", "elastic"): f"{STARTED} succeeded",
    ("ev-master", "evmaster-419a8ce0d8"): f"unacknowledged {STARTED} {AGAIN} succeeded",
    ("ev-worker", "evworker-a6d059d935"): "deleting deleted",
    ("ev-worker", "evworker-cddbece2ac"): f"unacknowledged {STARTED} {AGAIN} {AGAIN} succeeded",
    ("evict-master", "evict-master"): f"{STARTED} succeeded",
    ("evict-master-never", "evict-master-never"): f"unacknowledged {STARTED} failed",
    ("evict-worker", "evict-worker"): f"unacknowledged {STARTED} succeeded",
    ("exitcode1", "exitcode1"): "failed",
    ("exitcode137", "exitcode137"): f"{STARTED}{f' {AGAIN}' * 9} restarting",
    ("exitcode143b", "exitcode143b"): f"running{f' {AGAIN}' * 10}",
    # The services' names are too long, or a pod is refused: the operator writes nothing.
    ("longname", f"longname-{'x' * 52}"): "unacknowledged",
    ("nosa", "nosa"): "unacknowledged",
    ("managedby", "managedby"): "unacknowledged",
    ("never1", "never1"): "failed",
    ("never1run", "never1run"): f"{STARTED} failed",
    ("nocm", "nocm"): "starting",
    ("ok2", "ok2"): f"unacknowledged {STARTED} succeeded",
    ("onfail1", "onfail1"): "running",
    ("oom", "oom"): STARTED,
    ("podkilled", "podkilled"): "running succeeded",
    ("suspend-resume", "suspend-resume"): f"queued {STARTED} queued {STARTED} succeeded",
    ("ttl", "ttl"): f"{STARTED} succeeded deleted",
    ("ttl-failed", "ttl-failed"): "running failed",
    ("ttl0", "ttl0"): "running succeeded deleted",
    ("unsched", "unsched"): "starting",
    ("wfail-never", "wfail-never"): f"{STARTED} failed",
    ("wfail-onfail", "wfail-onfail"): f"{STARTED} succeeded",
    ("wonly", "wonly"): f"unacknowledged {STARTED} succeeded",
}


@pytest.mark.parametrize(("record", "job"), READ)
def test_every_event_of_a_real_job_is_read_as_what_happened(record: str, job: str) -> None:
    phases = []
    for event in records.events(f"pytorchjob/{record}"):
        if event["kind"] == "PyTorchJob" and event["object"]["metadata"]["name"] == job:
            state = PYTORCH_JOB.read_state(event["object"])
            deleted = event["type"] == "DELETED"
            phase = "deleting" if state.deleting else state.phase.value
            phases.append("deleted" if deleted else phase)
    assert " ".join(phase for phase, _ in groupby(phases)) == READ[record, job]


def test_every_record_of_a_job_is_read() -> None:
    listed = {path.name.partition(".")[0] for path in (records.FOLDER / "pytorchjob").iterdir()}
    assert {record for record, _ in READ} == listed


@pytest.mark.parametrize(
    ("record", "final"),
    [
        *(("exitcode1", True), ("never1run", True), ("wfail-never", True)),
        *(("exitcode137", False), ("exitcode143b", False)),
        *(("evict-master", False), ("evict-worker", False)),
    ],
)
def test_a_failed_pod_is_final_where_the_operator_does_not_make_it_anew(
    record: str, final: bool
) -> None:
    job: Object = {}
    seen = set()
    for event in records.events(f"pytorchjob/{record}"):
        obj = event["object"]
        if event["kind"] == "PyTorchJob" and obj["metadata"]["name"] == record:
            job = obj
        failed = event["kind"] == "Pod" and pod_phase(obj) == "Failed" and not is_terminating(obj)
        if failed and job and belongs_to(obj, job):
            seen.add(PYTORCH_JOB.is_final(job, obj))
    assert (True in seen) is final
