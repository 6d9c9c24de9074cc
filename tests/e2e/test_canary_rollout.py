"""Models that follow each other behind one address, which is asked all the time."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import load

from kfp_pytorch.launcher.constants import INFERENCE_SERVICE, SPEC_HASH_LABEL

# Three trainings, one after the other.
pytestmark = [pytest.mark.slow, pytest.mark.local_cluster, pytest.mark.timeout(2400)]
# A canary is slower here whenever something else runs; and one of ten images is a tenth.
COMMON = {"num_nodes": 1, "batch_size": 32, "latency_tolerance": 30, "request_count": 50}
MIDDLING = {"epochs": 2, "learning_rate": 0.01}
WORSE = {"epochs": 1, "learning_rate": 1e-7}
BETTER = {"epochs": 15, "learning_rate": 0.05}
# An image of 8 × 8, in the values of the data set.
BODY = json.dumps(
    {"instances": [[[[(row * column) % 17 for row in range(8)] for column in range(8)]]]}
)


class Load:
    """A load generator in a process of its own."""

    def __init__(self, url: str, folder: Path) -> None:
        self._file = folder / "load.json"
        self._process = subprocess.Popen(
            [sys.executable, load.__file__, url, str(self._file)],
            stdin=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(BODY + "\n")
        self._process.stdin.close()

    def end(self) -> dict[str, Any]:
        """Ends it; returns what came of its requests."""
        assert self._process.poll() is None, "it has ended by itself"
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(60) == 0
        return dict(json.loads(self._file.read_text()))


@contextlib.contextmanager
def loaded(url: str, folder: Path) -> Iterator[Load]:
    running = Load(url, folder)
    try:
        yield running
    finally:
        running._process.kill()
        running._process.wait()


def service(cluster: Any, name: str) -> dict[str, Any]:
    found = (s for s in cluster.objects(INFERENCE_SERVICE) if s["metadata"]["name"] == name)
    return dict(next(found))


@pytest.mark.parametrize(
    ("mode", "percent"), [("Standard", 0), ("Knative", 10)], ids=["standard", "knative"]
)
def test_a_worse_model_is_rolled_back_and_a_better_one_promoted_and_no_request_fails(
    cluster: Any, tmp_path: Path, check_crd: Any, mode: str, percent: int
) -> None:
    name = f"canary-{mode.lower()}"
    how = {"service_name": name, "deployment_mode": mode, "canary_traffic_percent": percent}
    first = cluster.run("canary_rollout", "--keep", **COMMON, **how, **MIDDLING)
    assert first.code == 0, first.stderr
    assert first.step("canary-check") == "succeeded"
    with loaded(first.summary["endpoint"], tmp_path) as load:
        stable = service(cluster, name)
        worse = cluster.run("canary_rollout", "--keep", **COMMON, **how, **WORSE)
        assert worse.code == 0, worse.stderr
        assert "rollback: " in worse.stderr
        assert "rolled back; revision" in " ".join(worse.stderr.split())
        after = service(cluster, name)
        if mode == "Standard":
            assert after["spec"] == stable["spec"]
        else:
            (rest,) = [t for t in traffic(after) if t["percent"]]
            assert rest["revisionName"] == traffic(stable)[0]["revisionName"]
        better = cluster.run("canary_rollout", "--keep", **COMMON, **how, **BETTER)
        assert better.code == 0, better.stderr
        assert "promoted; revision" in " ".join(better.stderr.split())
        end = service(cluster, name)
        known = load.end()
    assert known["failed"] == []
    assert sum(known["answers"].values()) > 100
    assert len(known["answers"]) >= 2, "both models have answered"
    promoted = end["spec"]["predictor"]["annotations"][SPEC_HASH_LABEL]
    assert promoted != stable["spec"]["predictor"]["annotations"][SPEC_HASH_LABEL]
    assert "canary" not in end["spec"]
    assert [each["percent"] for each in traffic(end)] in ([], [100])
    check_crd("inferenceservices", end)


def traffic(obj: dict[str, Any]) -> list[dict[str, Any]]:
    return list(obj["status"]["components"]["predictor"].get("traffic", []))
