"""PyTorchJobs here and on a real cluster: the same cause has the same states in the same order."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.objects import records

from kfp_pytorch.launcher.constants import POD, PYTORCHJOB
from kfp_pytorch.local.controllers.kubelet.timing import Timing

pytestmark = pytest.mark.skipif(not records.FOLDER.exists(), reason="no records of a real cluster")

Object = dict[str, Any]
Action = Callable[[Any, str, Path], Awaitable[None]]

PYTHON = ["python", "-I", "-S", "-c"]
MARKER = "{marker}"
SLEEP = "import time; time.sleep(600)"
# What repeats without an end is compared as far as this.
MOST = 7
LIMIT_S = 60
# No run is so long that the back-off begins anew.
TIMING = Timing(sync=0.02, crash_loop=0.05, first_backoff=0.1, longest_backoff=4)


def replica(
    code: str | list[str], policy: str = "OnFailure", count: int = 1, **more: Any
) -> Object:
    """A replica of a job; keys with a capital letter first belong to the pod's spec."""
    command = [*PYTHON, code] if isinstance(code, str) else code
    own = {key: value for key, value in more.items() if not key[:1].isupper()}
    spec = {key[:1].lower() + key[1:]: v for key, v in more.items() if key[:1].isupper()}
    container = {"name": "pytorch", "image": "i", "command": command, **own}
    template = {"spec": {"containers": [container], **spec}}
    return {"replicas": count, "restartPolicy": policy, "template": template}


def sleeps(seconds: float, code: int = 0) -> str:
    return f"import time; time.sleep({seconds}); raise SystemExit({code})"


async def nothing(_local: Any, _job: str, _marker: Path) -> None:
    pass


async def delete_master(local: Any, job: str, marker: Path, grace: int | None = None) -> None:
    """Deletes the master's pod while it runs, as an eviction does."""
    await local.condition(job, "Running")
    await until(marker.exists)
    local.api.delete(POD, "default", f"{job}-master-0", grace=grace)


async def kill_master(local: Any, job: str, marker: Path) -> None:
    await delete_master(local, job, marker, grace=0)


async def resume_suspend_resume(local: Any, job: str, marker: Path) -> None:
    def suspend(value: bool) -> None:
        def change(obj: Object) -> None:
            obj["spec"]["runPolicy"]["suspend"] = value

        local.api.mutate(PYTORCHJOB, "default", job, change)

    await local.condition(job, "Suspended")
    suspend(False)
    await local.condition(job, "Running")
    await until(marker.exists)
    suspend(True)
    await until(lambda: not local.api.list(POD, "default"))
    suspend(False)


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():
            await asyncio.sleep(0.01)


@dataclass(frozen=True)
class Cause:
    """What was done to a job.

    Attributes:
        replicas: The job's replicas.
        policy: Its run policy.
        spec: The rest of its spec.
        action: What is done to it while it runs.
        pods: The pods, by their names' ends, whose states are compared. Workers of a job with a
            master are left out where they wait for its DNS name: here they need not.
        missed: A state of these that the real kubelet was too slow to report.
    """

    replicas: dict[str, Object]
    policy: Object | None = None
    spec: Object | None = None
    action: Action = nothing
    pods: tuple[str, ...] = ("master-0",)
    missed: str = ""


def master(code: str | list[str], policy: str = "OnFailure", **more: Any) -> dict[str, Object]:
    return {"Master": replica(code, policy, **more)}


def workers(code: str, count: int, policy: str = "OnFailure") -> dict[str, Object]:
    return {"Worker": replica(code, policy, count)}


# Sleeps when it runs first, and succeeds when it runs again.
SECOND_TIME = (
    "import pathlib, signal, sys, time\n"
    "marker = pathlib.Path(sys.argv[1])\n"
    "if len(sys.argv) > 2: signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "first = not marker.exists()\n"
    "marker.touch()\n"
    "time.sleep(600 if first else 0.3)\n"
)
BOTH = ("master-0", "worker-0")
CAUSES = {
    "ok2": Cause(master(sleeps(0.5)) | workers(sleeps(0.7), 1), pods=BOTH),
    "wonly": Cause(workers(sleeps(0.4), 2), pods=("worker-0", "worker-1")),
    "elastic": Cause(
        workers(sleeps(0.4), 2),
        spec={"elasticPolicy": {"minReplicas": 1, "maxReplicas": 3}},
        pods=("worker-0", "worker-1"),
    ),
    "never1run": Cause(
        master(sleeps(0.2, 1), "Never") | workers(SLEEP, 1, "Never"), {"cleanPodPolicy": "Running"}
    ),
    "wfail-never": Cause(
        master(sleeps(1.5), "Never") | workers(sleeps(0.3, 1), 2, "Never"),
        pods=("master-0", "worker-0", "worker-1"),
    ),
    "wfail-onfail": Cause(master(sleeps(2)) | workers(sleeps(0.1, 1), 2), pods=BOTH),
    "onfail1": Cause(master(sleeps(0.1, 1))),
    "backoff2": Cause(
        master("import time; time.sleep(0.2); raise SystemExit(1)"), {"backoffLimit": 2}
    ),
    "exitcode137": Cause(master(sleeps(0.2, 137), "ExitCode")),
    "exitcode143b": Cause(master(sleeps(0.2, 143), "ExitCode"), {"backoffLimit": 2}),
    "exitcode1": Cause(master(sleeps(0.2, 1), "ExitCode")),
    "oom": Cause(
        master(
            "import time; held = bytearray(200 << 20); time.sleep(600)",
            resources={"limits": {"memory": "64Mi"}},
        ),
        missed="Running running 1",
    ),
    "badcmd": Cause(master(["nonsuch"])),
    "badname-image": Cause(master(SLEEP, image="No//Name")),
    "nocm": Cause(master(SLEEP, envFrom=[{"configMapRef": {"name": "nonsuch"}}])),
    "nosa": Cause(master(SLEEP, ServiceAccountName="nonsuch"), pods=()),
    "unsched": Cause(master(SLEEP, resources={"limits": {"nvidia.com/gpu": "1"}})),
    "longname": Cause(master(sleeps(0.2))),
    "managedby": Cause(master(SLEEP), {"managedBy": "kueue.x-k8s.io/multikueue"}, pods=()),
    "clean-all": Cause(master(sleeps(0.3)) | workers(SLEEP, 1), {"cleanPodPolicy": "All"}),
    "clean-running": Cause(master(sleeps(0.3)) | workers(SLEEP, 1), {"cleanPodPolicy": "Running"}),
    # Without a worker, whose events after the deadline would end the job.
    "deadline": Cause(master(sleeps(2.3)), {"activeDeadlineSeconds": 2}),
    "ttl": Cause(master(sleeps(0.3)), {"ttlSecondsAfterFinished": 1}),
    "ttl0": Cause(master(sleeps(0.3)), {"ttlSecondsAfterFinished": 0}),
    "ttl-failed": Cause(master(sleeps(0.2, 1), "ExitCode"), {"ttlSecondsAfterFinished": 0}),
    "evict-master-never": Cause(
        master([*PYTHON, SECOND_TIME, MARKER], "Never"), action=delete_master
    ),
    "ev-master": Cause(master([*PYTHON, SECOND_TIME, MARKER]), action=delete_master),
    "podkilled": Cause(master([*PYTHON, SECOND_TIME, MARKER]), action=kill_master),
    "suspend-resume": Cause(
        master([*PYTHON, SECOND_TIME, MARKER, "ignores SIGTERM"], TerminationGracePeriodSeconds=1),
        {"suspend": True},
        action=resume_suspend_resume,
    ),
}
# No image is pulled here. A race, which either may win. What is recorded of the others begins
# after the end, or is the same as of another cause.
NOT_COMPARED = {
    *("badimage", "badwimage", "both-fail-race", "backoff0", "backoff1", "never1"),
    *("del-running", "del-running-fg", "ev-worker", "evict-master", "evict-worker"),
}
NAMES = {"ev-master": "evmaster-419a8ce0d8", "longname": f"longname-{'x' * 52}"}


@pytest.mark.parametrize("record", CAUSES)
def test_a_job_goes_through_the_states_that_were_recorded(
    on_controllers: Callable[..., None], tmp_path: Path, record: str
) -> None:
    cause, name = CAUSES[record], NAMES.get(record, record)
    found = records.events(f"pytorchjob/{record}")

    async def story(local: Any) -> None:
        marker = tmp_path / "marker"
        replicas = json.loads(json.dumps(cause.replicas).replace(MARKER, str(marker)))
        job = {"runPolicy": cause.policy or {}, **(cause.spec or {})}
        local.create_job(name, replicas, **job)
        await cause.action(local, name, marker)
        wanted = records.conditions(records.states(found, "PyTorchJob", name))
        await reaches(wanted, lambda: records.conditions(local.history(PYTORCHJOB, name)))
        for pod in (f"{name}-{end}" for end in cause.pods):
            wanted = records.pod_states(records.states(found, "Pod", pod), "pytorch")
            await reaches(wanted, partial(seen_of, local, pod, cause.missed))

    on_controllers(story, timing=TIMING)


def seen_of(local: Any, pod: str, missed: str) -> list[str]:
    seen = records.pod_states(local.history(POD, pod), "pytorch")
    return [state for state in seen if state != missed]


async def reaches(recorded: list[str], seen: Callable[[], list[str]]) -> None:
    """Waits until all that was recorded has been seen, from where the record begins."""
    wanted = recorded[:MOST]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LIMIT_S):
            while from_first(seen(), wanted)[: len(wanted)] != wanted:
                await asyncio.sleep(0.05)
    assert from_first(seen(), wanted)[: len(wanted)] == wanted


def from_first(seen: list[str], wanted: list[str]) -> list[str]:
    return seen[seen.index(wanted[0]) :] if wanted[0] in seen else seen


def test_the_table_names_every_record_of_a_job() -> None:
    listed = {path.name.partition(".")[0] for path in (records.FOLDER / "pytorchjob").iterdir()}
    assert set(CAUSES) | NOT_COMPARED == listed
    assert not set(CAUSES) & NOT_COMPARED
