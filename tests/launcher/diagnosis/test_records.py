"""The first cause of jobs that failed on a real cluster, by what was recorded there."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kfp_pytorch.launcher.diagnosis.message import diagnose
from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.waiting.evidence import Evidence

RECORDS = Path(__file__).parents[4] / "shared/records/pytorchjob"
pytestmark = pytest.mark.skipif(not RECORDS.exists(), reason="no records of a real cluster")

CAUSES = {
    "backoff2": "backoff2-master-0 ended with exit code 1, after 2 restarts over all pods",
    "badcmd": "badcmd-master-0: container 'pytorch' cannot be started (StartError)",
    "badimage": "badimage-master-0: container 'pytorch' cannot pull the image",
    "badname-image": "badname-image-master-0: container 'pytorch' has an image whose name is not",
    "badwimage": "badwimage-worker-0: container 'pytorch' cannot pull the image",
    "deadline": "The operator ended the job at its deadline",
    "evict-master-never": "evict-master-never-master-0 was taken off node1 (EvictionByEvictionAPI)",
    "exitcode1": "exitcode1-master-0 ended with exit code 1",
    "exitcode137": "exitcode137-master-0 ended with exit code 137 (SIGKILL)",
    "managedby": "The Training Operator has not acknowledged the job",
    "never1": "never1-master-0 ended with exit code 1",
    "nocm": "nocm-master-0: container 'pytorch' cannot be configured",
    "nosa": "The operator cannot create the pods (FailedCreatePod)",
    "oom": "oom-master-0 ran out of memory: OOMKilled, exit code 137 (SIGKILL), at its limit of 32",
    "unsched": "No node takes unsched-master-0 (1 of 1 pods). The scheduler says: 0/1 nodes are "
    "available: 1 Insufficient nvidia.com/gpu.",
    "wfail-never": "wfail-never-worker-0 ended with exit code 1; 1 more pod failed too",
}


@pytest.mark.parametrize("record", CAUSES)
def test_the_first_line_names_what_was_done_to_the_job(record: str) -> None:
    message = diagnose(_evidence(record), "PyTorchJob failed").message
    assert message.startswith(CAUSES[record])


def _evidence(record: str) -> Evidence:
    """Collect a record as a launcher does that sees every object."""
    evidence = Evidence(PYTORCH_JOB)
    with gzip.open(RECORDS / f"{record}.jsonl.gz", "rt") as lines:
        entries: list[dict[str, Any]] = [json.loads(line) for line in list(lines)[1:]]
    for entry in entries:
        obj = entry.get("object") or {}
        if entry["type"] not in ("ADDED", "MODIFIED", "DELETED"):
            continue
        if entry["kind"] == "PyTorchJob":
            evidence.job = obj
        elif entry["kind"] == "Event":
            evidence.events.append(obj)
        elif entry["kind"] == "Pod":
            name = obj["metadata"]["name"]
            before = evidence.pods.get(name)
            if before and before["metadata"]["uid"] != obj["metadata"]["uid"]:
                evidence.past_pods.append(before)
            evidence.pods[name] = obj
    return evidence
