"""A job that an earlier version of the launcher created is adopted: the contracts are unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import EVENT, POD, PYTORCHJOB

RECORDED = Path(__file__).parent / "recorded" / "running_pytorch_job.json"
CONTRACT = ("name", "namespace", "labels", "annotations")


@pytest.fixture
def recorded(hands: Any) -> Any:
    """The recorded objects, put into the server as a running job."""
    objects = json.loads(RECORDED.read_text())

    def create(api: Any) -> None:
        job = objects["job"]
        made = api.create(PYTORCHJOB, {key: job[key] for key in ("metadata", "spec")})
        where = (PYTORCHJOB, "default", job["metadata"]["name"])
        api.mutate(*where, lambda obj: obj.update(status=job["status"]), "status")
        for pod in objects["pods"]:
            pod["metadata"]["ownerReferences"][0]["uid"] = made["metadata"]["uid"]
            api.create(POD, pod)

            def report(obj: Any, status: Any = pod["status"]) -> None:
                obj["status"] = status

            api.mutate(POD, "default", pod["metadata"]["name"], report, "status")
        for event in objects["events"]:
            api.create(EVENT, event)

    hands.server.call(create, hands.server.api)
    return objects


def test_a_job_of_an_earlier_version_is_adopted(
    step: Any, hands: Any, told: list[str], says: Any, recorded: Any
) -> None:
    run = step(**recorded["inputs"])
    says("running")
    assert told[0] == (
        f"adopted PyTorchJob default/{run.job}, which an earlier attempt of this step had made; "
        f"folder pvc://kfp-pytorch/run-1/{run.job}"
    )
    assert [job["metadata"]["name"] for job in hands.jobs()] == [run.job]
    hands.success(run.job, metrics={"accuracy": 0.5})
    assert run.succeeded().folder == f"pvc://kfp-pytorch/run-1/{run.job}"
    assert run.outputs.metrics.metadata == {"accuracy": 0.5}
    assert "made from other inputs" not in Path(run.outputs.report.path).read_text()


def test_this_version_creates_the_same_job(step: Any, hands: Any) -> None:
    objects = json.loads(RECORDED.read_text())
    run = step(**objects["inputs"])
    made, old = hands.job(run.job), objects["job"]
    assert made["spec"] == old["spec"]
    assert {key: made["metadata"][key] for key in CONTRACT} == {
        key: old["metadata"][key] for key in CONTRACT
    }
    hands.success(run.job)
    run.succeeded()
