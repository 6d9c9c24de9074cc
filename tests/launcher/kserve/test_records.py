"""The rollout of InferenceServices as a real KServe wrote them, at every event of a record."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import SPEC_HASH_LABEL
from kfp_pytorch.launcher.kserve.evidence import crash_loop
from kfp_pytorch.launcher.kserve.rollout import rollout
from kfp_pytorch.launcher.kubernetes.objects import Object, dig
from kfp_pytorch.launcher.kubernetes.pod_status import container_statuses

RECORDS = Path(__file__).parents[4] / "shared/records/inferenceservice"
pytestmark = pytest.mark.skipif(not RECORDS.exists(), reason="no records of a real cluster")

# For each record and service: the hash of each revision, in order, and how its rollout went.
READ = {
    ("create", "image-classifier"): "rolling serves",
    # Created; updated to a model that crash-loops; updated to a good one; deleted.
    ("life", "sv1"): "rolling serves | rolling crashes | rolling serves | deleted",
    # Created; updated to a folder that is not there.
    ("s3", "s3-classifier"): "rolling serves | rolling crashes",
    ("s3bad", "s3-classifier"): "rolling serves | rolling crashes",
    ("s3bad", "s3-b"): "rolling crashes",
    # Its service account is not there: no pod can be created.
    ("s3bad", "s3-e"): "rolling refused",
}


@pytest.mark.parametrize(("record", "service"), READ)
def test_every_event_of_a_real_rollout_is_read_as_what_happened(record: str, service: str) -> None:
    revisions = []
    for _, states in groupby(_states(record, service), key=lambda seen: seen[0]):
        revisions.append(" ".join(name for name, _ in groupby(state for _, state in states)))
    assert " | ".join(revisions) == READ[record, service]


def _states(record: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield the wanted revision and the state of its rollout after each event."""
    service: Object = {}
    workload: Object | None = None
    pods: dict[str, Object] = {}
    for event in _events(record):
        obj: dict[str, Any] = event.get("object") or {}
        called = str(dig(obj, "metadata", "name") or "")
        gone = event["type"] == "DELETED"
        if event["kind"] == "InferenceService" and called == name:
            service = obj
            if gone:
                yield "deleted", "deleted"
                return
        elif event["kind"] == "Deployment" and called == f"{name}-predictor":
            workload = None if gone else obj
        elif event["kind"] == "Pod" and called.startswith(f"{name}-predictor-"):
            pods.pop(called, None)
            if not gone:
                pods[called] = obj
        if service:
            wanted = str(dig(service, "spec", "predictor", "annotations", SPEC_HASH_LABEL))
            yield wanted, _state(service, workload, list(pods.values()), wanted)


def _state(service: Object, workload: Object | None, pods: list[Object], wanted: str) -> str:
    state = rollout(service, workload, wanted)
    new = [p for p in pods if dig(p, "metadata", "annotations", SPEC_HASH_LABEL) == wanted]
    if state.done:
        return "serves"
    if state.refusal:
        return "refused"
    return (
        "crashes" if any(crash_loop(s) for p in new for s in container_statuses(p)) else "rolling"
    )


def _events(record: str) -> list[dict[str, Any]]:
    with gzip.open(RECORDS / f"{record}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in list(lines)[1:]]
