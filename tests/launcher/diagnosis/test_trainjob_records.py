"""The first cause of TrainJobs that failed on a real cluster, by what was recorded there."""

from __future__ import annotations

import pytest
from harness.objects import records

from kfp_pytorch.launcher.diagnosis.message import diagnose
from kfp_pytorch.launcher.jobs.trainjob.kind import TRAIN_JOB
from kfp_pytorch.launcher.kubernetes.pod_status import is_terminating
from kfp_pytorch.launcher.waiting.evidence import Evidence

pytestmark = pytest.mark.skipif(not records.FOLDER.exists(), reason="no records of a real cluster")

CAUSES = {
    "badcmd": "badcmd-node-0-0-bpn5g: container 'node' cannot be started (StartError)",
    "badimage": "badimage-node-0-0-ftjxs: container 'node' cannot pull the image",
    "deadline": "The operator ended the job at its deadline",
    "fail-backoff1": "fail-backoff1-node-0-0-djmhm ended with exit code 3, after 1 restart",
    "fail-default": "fail-default-node-0-0-hgrct ended with exit code 3, after 6 restarts",
    "fail-retry": "fail-retry-node-0-0-kv6hz ended with exit code 3; 2 more pods failed too",
    # The Trainer starts these two again after their end.
    "js-deleted": "js-deleted-node-0-0-n6dht ended with exit code 3; 2 more pods failed too",
    "ttl-fail": "ttl-fail-node-0-0-mp6hp ended with exit code 3",
    "kubelet-evicted": "kubelet-evicted-node-0-0-6mksh was taken off node1 (Evicted): Pod",
    "oom": "oom-node-0-0-pgxsb ran out of memory: OOMKilled, exit code 137 (SIGKILL), at its limit",
    "unsched": "No node takes unsched-node-0-0-s6w7w (1 of 1 pods). The scheduler says: 0/1",
}


@pytest.mark.parametrize("record", CAUSES)
def test_the_first_line_names_what_was_done_to_the_job(record: str) -> None:
    message = diagnose(_evidence(record), "TrainJob failed").message
    assert message.startswith(CAUSES[record])


def _evidence(record: str) -> Evidence:
    """Collect a record, as a launcher does that sees every object, to the job's end."""
    evidence = Evidence(TRAIN_JOB)
    for entry in records.events(f"trainjob/{record}"):
        obj, kind = entry.get("object") or {}, entry["kind"]
        if entry["type"] not in ("ADDED", "MODIFIED", "DELETED"):
            continue
        if kind == "TrainJob":
            if entry["type"] == "DELETED":
                break
            evidence.job = obj
            if TRAIN_JOB.read_state(obj).phase.ended:
                break
        elif kind == "Event":
            evidence.events.append(obj)
        elif kind == "Pod" and not (record == "badimage" and is_terminating(obj)):
            evidence.pods[obj["metadata"]["name"]] = obj
    return evidence
