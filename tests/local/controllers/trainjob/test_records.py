"""TrainJobs here and on a real cluster: the same cause has the same states in the same order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pytest
from harness.objects import records

from kfp_pytorch.launcher.constants import CLUSTER_TRAINING_RUNTIME, POD, TRAINJOB
from kfp_pytorch.local.controllers.kubelet.timing import Timing
from kfp_pytorch.local.controllers.trainjob.runtimes import TORCH_DISTRIBUTED

pytestmark = pytest.mark.skipif(not records.FOLDER.exists(), reason="no records of a real cluster")

Object = dict[str, Any]
Action = Callable[[Any, str], Awaitable[None]]
# No back-off is so short that a failure is not seen as such.
TIMING = Timing(sync=0.02, crash_loop=0.05, first_backoff=0.1, longest_backoff=0.3)
SHORT = "import time; time.sleep(0.4)"
LONG = "import time; time.sleep(600)"
OF_RANK = "import os, time; time.sleep(1.2 if os.environ['PET_NODE_RANK'] == '0' else 0.4)"
FAILS = "import time, sys; time.sleep(0.4); sys.exit(3)"


async def nothing(_local: Any, _job: str) -> None:
    return


async def running(local: Any, job: str) -> None:
    await local.until(TRAINJOB, job, lambda obj: counts(obj).get("ready"))


async def suspend_and_resume(local: Any, job: str) -> None:
    def suspend(value: bool) -> None:
        local.api.mutate(TRAINJOB, "default", job, lambda obj: obj["spec"].update(suspend=value))

    await local.until(TRAINJOB, job, lambda obj: counts(obj).get("suspended"))
    suspend(False)
    await running(local, job)
    suspend(True)
    await local.until(TRAINJOB, job, lambda obj: counts(obj).get("suspended"))
    suspend(False)


async def delete(local: Any, job: str) -> None:
    await running(local, job)
    local.api.delete(TRAINJOB, "default", job)
    await local.deleted(TRAINJOB, job)
    async with asyncio.timeout(20):
        while local.api.list(POD, "default"):
            await asyncio.sleep(0.02)


@dataclass(frozen=True)
class Cause:
    """What a job is, and what is done to it while it runs."""

    code: str
    trainer: Object = field(default_factory=dict)
    spec: Object = field(default_factory=dict)
    backoff_limit: int = 6
    action: Action = nothing


CAUSES = {
    "ok": Cause(SHORT),
    "two": Cause(OF_RANK, {"numNodes": 2}),
    "suspend": Cause(SHORT, spec={"suspend": True}, action=suspend_and_resume),
    "fail-backoff1": Cause(FAILS, backoff_limit=1),
    "deadline": Cause(LONG, spec={"activeDeadlineSeconds": 2}),
    "deleted": Cause(LONG, action=delete),
}


@pytest.mark.parametrize("record", CAUSES)
def test_the_status_of_a_job_changes_as_on_a_real_cluster(
    record: str, on_controllers: Callable[..., None]
) -> None:
    cause, seen = CAUSES[record], []

    async def story(local: Any) -> None:
        runtime = {**TORCH_DISTRIBUTED, "metadata": {"name": "other"}}
        job = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]
        job["template"]["spec"]["backoffLimit"] = cause.backoff_limit
        local.api.create(CLUSTER_TRAINING_RUNTIME, runtime)
        trainer = {"image": "i", "command": local.python(cause.code), **cause.trainer}
        spec = {"runtimeRef": {"name": "other"}, "trainer": trainer, **cause.spec}
        meta = {"name": record, "namespace": "default"}
        local.api.create(TRAINJOB, {"metadata": meta, "spec": spec})
        await cause.action(local, record)
        if cause.action is not delete:
            await local.until(TRAINJOB, record, ended)
        seen.extend(local.history(TRAINJOB, record))

    on_controllers(story, timing=TIMING)
    real = records.states(records.events(f"trainjob/{record}"), "TrainJob", record)
    assert states(seen) == states(real)


def test_the_pods_of_two_nodes_are_those_of_a_real_cluster(
    on_controllers: Callable[..., None],
) -> None:
    here: list[Object] = []

    async def story(local: Any) -> None:
        command = ["torchrun", "x"]
        trainer = {"command": command, "image": "docker.io/library/python:3.12-slim", "numNodes": 2}
        spec = {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer}
        meta = {"name": "twotorch", "namespace": "default"}
        local.api.create(TRAINJOB, {"metadata": meta, "spec": spec})
        async with asyncio.timeout(20):
            while len(local.api.list(POD, "default")) < 2:
                await asyncio.sleep(0.02)
        here.extend(local.api.list(POD, "default"))
        local.api.delete(TRAINJOB, "default", "twotorch")
        async with asyncio.timeout(20):
            while local.api.list(POD, "default"):
                await asyncio.sleep(0.02)

    on_controllers(story)
    found = records.events("trainjob/twotorch")
    real = [e["object"] for e in found if e["kind"] == "Pod" and e["type"] == "ADDED"]
    ours, theirs = ({pod["spec"]["hostname"]: pod for pod in pods} for pods in (here, real))
    assert ours.keys() == theirs.keys()
    for host, pod in ours.items():
        there = theirs[host]
        assert pod["spec"]["subdomain"] == there["spec"]["subdomain"]
        assert pod["spec"]["restartPolicy"] == there["spec"]["restartPolicy"]
        assert pod["metadata"]["labels"].items() <= there["metadata"]["labels"].items()
        assert len(pod["metadata"]["name"]) == len(there["metadata"]["name"])
        envs = [
            {e["name"]: value(e) for e in p["spec"]["containers"][0]["env"]} for p in (pod, there)
        ]
        assert envs[0] == {**envs[1], "JOB_COMPLETION_INDEX": envs[0]["JOB_COMPLETION_INDEX"]}


def counts(job: Object) -> Object:
    found: Object = next(iter((job.get("status") or {}).get("jobsStatus") or []), {})
    return found


def ended(job: Object) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or []
    return any(c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in conditions)


def states(objects: Iterable[Object]) -> list[str]:
    """The states of a job, each once until it changes, to its end."""
    seen = []
    for each in objects:
        seen.append(_state(each))
        if ended(each):
            break
    return [state for state, _ in groupby(seen)]


def _state(job: Object) -> str:
    numbers = counts(job)
    shown = [
        f"{name} {numbers[name]}" for name in sorted(numbers) if numbers[name] and name != "name"
    ]
    conditions = (job.get("status") or {}).get("conditions") or []
    words = [f"{c['type']}={c['status']}({c['reason']}: {c['message']})" for c in conditions]
    return " ".join([*shown, *(["-"] if numbers and not shown else []), *words])


def value(variable: Object) -> str:
    reference = (variable.get("valueFrom") or {}).get("fieldRef") or {}
    return str(variable.get("value", reference.get("fieldPath")))
