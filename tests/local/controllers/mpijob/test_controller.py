"""MPIJobs as processes: the operator, the kubelet and an MPI together."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness.mpi import needs_mpi

from kfp_pytorch.launcher.constants import CONFIG_MAP, MPIJOB, POD
from kfp_pytorch.local.apiserver.registry import ROLE, ROLE_BINDING, SERVICE_ACCOUNT
from kfp_pytorch.local.processes import guard

Object = dict[str, Any]
Run = Callable[..., None]

pytestmark = needs_mpi

ALL_REDUCE = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(world.rank)
print("rank", world.rank, "of", world.size, "adds to", total, "in", os.environ["HOSTNAME"])
"""
# Programs that need no MPI themselves start much faster.
RANK_OF = "import os, sys, time; rank = int(os.environ['OMPI_COMM_WORLD_RANK']); "
ALL_SLEEP = f"{RANK_OF}print('rank', rank, flush=True); time.sleep(600)"


def job(program: str, *, workers: int = 2, slots: int = 2, **policy: Any) -> Object:
    """A job of Launcher and Workers. `policy`: its run policy, and `restart`."""
    python = ["python", "-I", *([] if "mpi4py" in program else ["-S"]), "-c", program]
    container = {"name": "mpi", "image": "i"}
    command = ["mpirun", "-np", str(workers * slots), *python]
    launcher = {"spec": {"containers": [{**container, "command": command}]}}
    restart = policy.pop("restart", "Never")
    specs = {
        "Launcher": {"replicas": 1, "restartPolicy": restart, "template": launcher},
        "Worker": {
            "replicas": workers,
            "restartPolicy": restart,
            "template": {"spec": {"containers": [container]}},
        },
    }
    body = {"mpiReplicaSpecs": specs, "slotsPerWorker": slots, "runPolicy": policy}
    return {"metadata": {"name": "j", "namespace": "default"}, "spec": body}


def conditions(made: Object) -> dict[str, str]:
    return {each["type"]: each["status"] for each in made["status"]["conditions"]}


def ranks(local: Any, launcher: Object, restarts: int = 0) -> list[str]:
    """The lines that the processes of a program print, in order."""
    log = local.log(launcher, "mpi", restarts)
    return sorted(line for line in log.splitlines() if line.startswith("rank"))


async def printed(local: Any, count: int) -> Object:
    """The launcher, once so many processes have printed a line."""
    launcher = await local.until(
        POD, "j-launcher", lambda pod: "running" in local.state(pod, "mpi").get("state", {})
    )
    async with asyncio.timeout(60):
        while len(ranks(local, launcher)) < count:
            await asyncio.sleep(0.05)
    return launcher


def sleepers() -> Iterator[int]:
    """The processes of a program that sleeps, below this one."""
    for pid in guard.descendants(os.getpid()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[3:5] == [b"-c", ALL_SLEEP.encode()]:
            yield pid


def test_each_worker_runs_as_many_processes_as_it_has_slots(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.api.create(MPIJOB, job(ALL_REDUCE, cleanPodPolicy="Running"))
        done = await local.condition("j", "Succeeded", kind=MPIJOB)
        assert conditions(done) == {"Created": "True", "Running": "False", "Succeeded": "True"}
        launcher = await local.phase("j-launcher", "Succeeded")
        assert ranks(local, launcher) == [
            f"rank {rank} of 4 adds to 6 in j-worker-{rank // 2}" for rank in range(4)
        ]
        for index in range(2):
            await local.deleted(POD, f"j-worker-{index}")

    on_controllers(story)


def test_a_process_that_fails_ends_the_others_and_fails_the_job(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        program = f"{RANK_OF}sys.exit(3) if rank == 1 else time.sleep(600)"
        local.api.create(MPIJOB, job(program, cleanPodPolicy="Running"))
        failed = await local.condition("j", "Failed", kind=MPIJOB)
        newest = failed["status"]["conditions"][-1]
        assert newest["reason"] == "MPIJobMPIJobFailed"
        assert newest["message"] == "MPIJob j is failed because 1 Launcher replica(s) failed."
        launcher = await local.phase("j-launcher", "Failed")
        assert local.ended(launcher, "mpi")["exitCode"] == 3
        for index in range(2):
            await local.deleted(POD, f"j-worker-{index}")

    on_controllers(story)


def test_a_launcher_is_started_again_up_to_the_backoff_limit(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        program = f"{RANK_OF}print('rank', rank, flush=True); sys.exit(1)"
        made = job(program, workers=1, slots=1, restart="OnFailure", backoffLimit=1)
        local.api.create(MPIJOB, made)
        failed = await local.condition("j", "Failed", kind=MPIJOB)
        words = failed["status"]["conditions"][-1]["message"]
        assert words == "Job j has failed because it has reached the specified backoff limit"
        last = await local.deleted(POD, "j-launcher")
        assert local.state(last, "mpi")["restartCount"] >= 1
        assert ranks(local, last) == ["rank 0"]

    on_controllers(story)


def test_nothing_is_left_of_a_job_that_is_deleted(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.api.create(MPIJOB, job(ALL_SLEEP))
        await printed(local, 4)
        assert len(list(sleepers())) == 4
        owned = (CONFIG_MAP, SERVICE_ACCOUNT, ROLE, ROLE_BINDING)
        assert [len(local.api.list(kind, "default")) for kind in owned] == [1, 1, 1, 1]
        local.api.delete(MPIJOB, "default", "j")
        async with asyncio.timeout(60):
            while any(local.api.list(kind, "default") for kind in (POD, *owned)):
                await asyncio.sleep(0.05)
        assert not list(sleepers())

    on_controllers(story)


def test_a_process_counts_for_the_memory_of_its_worker(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        program = f"{RANK_OF}held = bytearray(rank * 400 << 20); time.sleep(600)"
        made = job(program, slots=1, cleanPodPolicy="Running")
        (container,) = made["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
        container["resources"] = {"limits": {"memory": "200Mi"}}
        local.api.create(MPIJOB, made)
        worker = await local.phase("j-worker-1", "Failed")
        assert local.ended(worker, "mpi")["reason"] == "OOMKilled"
        await local.condition("j", "Failed", kind=MPIJOB)
        await local.deleted(POD, "j-worker-0")

    on_controllers(story)


def test_a_worker_that_is_killed_fails_the_job(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.api.create(MPIJOB, job(ALL_SLEEP, cleanPodPolicy="Running"))
        await printed(local, 4)
        worker = local.api.get(POD, "default", "j-worker-1")
        of_worker = int(local.state(worker, "mpi")["containerID"].removeprefix("containerd://"))
        # The container's first process.
        os.kill(guard.descendants(of_worker)[0], signal.SIGKILL)
        failed = await local.condition("j", "Failed", kind=MPIJOB)
        assert "replica(s) failed" in failed["status"]["conditions"][-1]["message"]
        await local.deleted(POD, "j-worker-0")
        assert not list(sleepers())

    on_controllers(story)
