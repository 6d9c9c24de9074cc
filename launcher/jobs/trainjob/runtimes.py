"""Checks that a training runtime can run a TrainJob. No I/O."""

from __future__ import annotations

from kfp_pytorch.launcher.constants import NODE_CONTAINER
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs.scheduling import named
from kfp_pytorch.launcher.jobs.trainjob.inputs import TrainJobInputs
from kfp_pytorch.launcher.jobs.trainjob.state import INITIALIZERS
from kfp_pytorch.launcher.kubernetes.objects import Object, dig, each

_LONGEST = 63
_RANDOM_END = 6


def check_runtime(runtime: Object, inputs: TrainJobInputs, job_name: str) -> None:
    """Check what the Trainer refuses late or not at all. Raises InputError."""
    title = f"The {inputs.runtime_kind} {inputs.runtime!r}"
    jobs = {
        str(job.get("name")): job
        for job in each(runtime, "spec", "template", "spec", "replicatedJobs")
    }
    containers = each(
        jobs.get(NODE_CONTAINER), "template", "spec", "template", "spec", "containers"
    )
    if not any(container.get("name") == NODE_CONTAINER for container in containers):
        raise InputError(
            f"{title} has no job {NODE_CONTAINER!r} with a container {NODE_CONTAINER!r}, which "
            "would train; name another runtime."
        )
    for name in inputs.initializers:
        if INITIALIZERS[name] not in jobs:
            raise InputError(
                f"{name}_initializer is given, and {title[0].lower()}{title[1:]} has no job "
                f"{INITIALIZERS[name]!r} that would run it; it has {', '.join(jobs)}. Name a "
                "runtime that has one, such as those for torchtune."
            )
    _check_names(jobs, title, job_name)
    _check_scheduler(runtime, inputs)


def _check_scheduler(runtime: Object, inputs: TrainJobInputs) -> None:
    metadata = {"labels": inputs.labels, "annotations": inputs.annotations}
    of_job = named.in_job(
        inputs.scheduling, {"metadata": metadata, "spec": {"managedBy": inputs.managed_by}}
    )
    policy = dig(runtime, "spec", "podGroupPolicy")
    of_runtime = [(name, f"the runtime's podGroupPolicy.{name}") for name in policy or {}]
    for job in each(runtime, "spec", "template", "spec", "replicatedJobs"):
        template = dig(job, "template", "spec", "template") or {}
        of_runtime += named.in_pods(template, "the pods of the runtime, their")
    for name in of_runtime:
        # One that names several itself is its author's.
        named.check_one([*of_job, name])


def _check_names(jobs: dict[str, Object], title: str, job_name: str) -> None:
    longest = max(jobs, key=len)
    length = len(f"{job_name}-{longest}-0-0") + _RANDOM_END
    if length > _LONGEST:
        raise InputError(
            f"{title} has a job {longest!r}: its pods' names would have {length} characters, and "
            f"at most {_LONGEST} are possible. Give this step a `name` that is "
            f"{length - _LONGEST} characters shorter."
        )
