"""The inputs that every job of the Training Operator has, and its run policy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import readers
from kfp_pytorch.launcher.inputs.declaration import declare
from kfp_pytorch.launcher.inputs.scheduling.demands import Demands
from kfp_pytorch.launcher.jobs.pods import input_readers
from kfp_pytorch.launcher.jobs.pods.inputs import PodInputs

# A crash of a distributed job counts once a node, so this many restarts of the whole job.
RESTARTS_BEFORE_FAILURE = 3
# The launcher applies active_deadline itself, on time. The operator looks at its own only when
# something else changes: it ends the job where no launcher runs. In seconds.
DEADLINE_BACKSTOP = 60

T = TypeVar("T", bound="OperatorInputs")


@dataclass(frozen=True, kw_only=True)
class OperatorInputs(PodInputs):
    """The checked inputs that every job of the Training Operator has."""

    backoff_limit: int = declare(partial(readers.integer, minimum=-1), -1)
    ttl_seconds: int = declare(input_readers.ttl, 86_400)
    clean_pod_policy: str = declare(input_readers.clean_pod_policy, "Running")
    restart_policy: str = declare(
        readers.one_of("OnFailure", "Never", "Always", "ExitCode"), "OnFailure"
    )


def with_backoff_limit(inputs: T, pods: int) -> T:
    """Give the inputs the limit of restarts that a job of so many pods has, unless they say one."""
    if inputs.backoff_limit >= 0:
        return inputs
    return replace(inputs, backoff_limit=RESTARTS_BEFORE_FAILURE * pods)


def run_policy(inputs: OperatorInputs, demanded: Demands) -> dict[str, Any]:
    """Make the job's `runPolicy`."""
    policy: dict[str, Any] = {
        "cleanPodPolicy": inputs.clean_pod_policy,
        "backoffLimit": inputs.backoff_limit,
    }
    if inputs.ttl_seconds >= 0:
        policy["ttlSecondsAfterFinished"] = inputs.ttl_seconds
    if inputs.active_deadline:
        policy["activeDeadlineSeconds"] = inputs.active_deadline + DEADLINE_BACKSTOP
    if demanded.scheduling_policy:
        policy["schedulingPolicy"] = dict(demanded.scheduling_policy)
    return policy


def check_patch(inputs: OperatorInputs) -> None:
    """Refuse a patch of the pods that the operator would ignore."""
    policy = (inputs.pod_template_patch.get("spec") or {}).get("restartPolicy")
    if policy:
        raise InputError(
            f"pod_template_patch.spec.restartPolicy is {policy!r}, which the operator replaces; "
            "use the input restart_policy."
        )
