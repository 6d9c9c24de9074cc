"""Rollouts that a real KServe made, played again to a step: it ends as they did there."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import DEPLOYMENT, INFERENCE_SERVICE, POD, SPEC_HASH_LABEL
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.kubernetes.objects import Object, dig

RECORDS = Path(__file__).parents[4] / "shared/records/inferenceservice"
pytestmark = pytest.mark.skipif(not RECORDS.exists(), reason="no records of a real cluster")

Start = Callable[..., Any]
Until = Callable[..., Any]
KServe = Any
_KINDS = {kind.kind: kind for kind in (INFERENCE_SERVICE, DEPLOYMENT, POD)}
# For each record and service: what the step of each revision says, in order; empty where it serves.
ENDS = {
    ("create", "image-classifier"): [""],
    ("life", "sv1"): ["", "'kserve-container' of the new revision keeps crashing", ""],
    ("s3", "s3-classifier"): ["", "'storage-initializer' of the new revision keeps crashing"],
    ("s3bad", "s3-b"): ["'storage-initializer' of the new revision keeps crashing"],
    # A format that no runtime supports, and a runtime that is not there.
    ("s3bad", "s3-c"): ["cannot serve this spec: NoSupportingRuntime: No runtime found"],
    ("s3bad", "s3-d"): ["cannot serve this spec: RuntimeNotRecognized: Waiting for runtime"],
    ("s3bad", "s3-e"): ['serviceaccount "nonsuch" not found'],
}


class Replay:
    """Writes what was recorded of one service, under the hashes of this step's revisions."""

    def __init__(self, kserve: KServe, name: str) -> None:
        self._kserve, self._name = kserve, name
        self._ours: dict[str, str] = {}  # by the recorded hash

    def service(self) -> Object:
        found: Object | None = self._kserve._find(INFERENCE_SERVICE, self._name)
        return found or {}

    def carried(self) -> str:
        return str(dig(self.service(), "spec", "predictor", "annotations", SPEC_HASH_LABEL) or "")

    def begins(self, recorded: str) -> None:
        self._ours[recorded] = self.carried()

    def plays(self, event: Object) -> None:
        kind, recorded = _KINDS[event["kind"]], event["object"]
        metadata = {**recorded["metadata"], "namespace": "default"}
        for field in ("uid", "resourceVersion", "generation", "creationTimestamp"):
            metadata.pop(field, None)
        name = metadata["name"]
        if event["type"] == "DELETED":
            if kind != INFERENCE_SERVICE and self._kserve._find(kind, name):
                server = self._kserve.server
                server.call(server.api.delete, kind, "default", name)
            return
        if kind == INFERENCE_SERVICE:
            self._writes_status(recorded)
            return
        made = {"metadata": metadata, "spec": recorded["spec"]}
        made = json.loads(self._under_our_hashes(json.dumps(made)))
        # What removes the pod's owner would remove the pod.
        made["metadata"].pop("ownerReferences", None)
        if self._kserve._find(kind, name) is None:
            self._kserve._create(kind, made)
        elif kind == DEPLOYMENT:
            self._kserve._mutate(kind, name, lambda obj: obj.update(spec=made["spec"]))
        self._writes_rest(kind, name, recorded)

    def _under_our_hashes(self, text: str) -> str:
        for recorded, ours in self._ours.items():
            text = text.replace(recorded, ours)
        return text

    def _writes_status(self, recorded: Object) -> None:
        """Writes KServe's status, and what its webhook filled in."""
        filled_in = dig(recorded, "metadata", "annotations") or {}

        def fill_in(obj: Object) -> None:
            annotations = {**filled_in, **(obj["metadata"].get("annotations") or {})}
            obj["metadata"]["annotations"] = annotations

        self._kserve._mutate(INFERENCE_SERVICE, self._name, fill_in)
        status = recorded.get("status")
        if status:
            self._kserve._mutate(
                INFERENCE_SERVICE, self._name, lambda obj: obj.update(status=status), "status"
            )

    def _writes_rest(self, kind: Any, name: str, recorded: Object) -> None:
        status = dict(recorded.get("status") or {})
        behind = int(dig(recorded, "metadata", "generation") or 0) - int(
            status.get("observedGeneration") or 0
        )

        def write(obj: Object) -> None:
            if kind == DEPLOYMENT and status:
                status["observedGeneration"] = obj["metadata"]["generation"] - behind
            obj["status"] = status

        if status:
            self._kserve._mutate(kind, name, write, "status")


def revisions(record: str, name: str) -> Iterator[tuple[str, list[Object]]]:
    """Yield the hash of each revision, and what was written while it was the wanted one."""
    wanted = ""
    found: list[tuple[str, Object]] = []
    for event in _events(record):
        called = str(dig(event, "object", "metadata", "name") or "")
        own = called == name if event["kind"] == INFERENCE_SERVICE.kind else _is_of(called, name)
        if event["kind"] not in _KINDS or not own:
            continue
        if event["kind"] == INFERENCE_SERVICE.kind:
            predictor = event["object"]["spec"]["predictor"]
            wanted = str(predictor["annotations"][SPEC_HASH_LABEL])
        if wanted:
            found.append((wanted, event))
    for revision, events in groupby(found, key=lambda pair: pair[0]):
        yield revision, [event for _, event in events]


def _is_of(called: str, name: str) -> bool:
    return called.startswith(f"{name}-predictor")


def _events(record: str) -> list[Object]:
    with gzip.open(RECORDS / f"{record}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in list(lines)[1:]]


# They have several revisions.
_LONG = ("life", "s3")


@pytest.mark.parametrize(
    ("record", "name"),
    [
        pytest.param(*pair, id="-".join(pair), marks=[pytest.mark.slow] * (pair[0] in _LONG))
        for pair in ENDS
    ],
)
def test_a_rollout_ends_as_it_did_on_a_real_cluster(
    kserve: KServe, start: Start, until: Until, record: str, name: str
) -> None:
    replay, ends = Replay(kserve, name), ENDS[record, name]
    for number, (revision, events) in enumerate(revisions(record, name)):
        before = replay.carried()
        step = start(metadata={"sha256": str(number)}, service_name=name)
        until(lambda before=before: replay.carried() not in ("", before))
        replay.begins(revision)
        for event in events:
            replay.plays(event)
            step.goes_on(looks=2)
        if ends[number]:
            assert ends[number] in step.failed().splitlines()[0]
            # Where an earlier revision served it still does, and the step says so.
            said = "The previous revision still serves." if number else "Nothing serves."
            assert said in step.error.message
        else:
            assert step.succeeded().url.startswith(f"http://{name}")


def test_knative_mode_that_a_cluster_lacks_is_refused_though_kserve_said_nothing_there(
    start: Start,
) -> None:
    """In the record `s3-f` KServe took the service, wrote no status and no event."""
    ((_, events),) = revisions("s3bad", "s3-f")
    assert [event["object"].get("status") for event in events] == [None]
    words = start(service_name="s3-f", deployment_mode="Knative").failed(InputError)
    assert "no Knative Serving" in words
