"""The kinds of jobs that have a component, by the name of its step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kfp_pytorch.launcher.jobs.kind import JobKind
from kfp_pytorch.launcher.jobs.kubeflowjob.kinds import KUBEFLOW_KINDS, choose
from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.jobs.trainjob.kind import TRAIN_JOB

KINDS: dict[str, JobKind] = {"pytorch_job": PYTORCH_JOB, "train_job": TRAIN_JOB}
# Steps whose inputs say of which kind their job is.
_CHOOSING: dict[str, Callable[[Mapping[str, Any]], JobKind]] = {"kubeflow_job": choose}
STEPS = (*KINDS, *_CHOOSING)
EVERY_KIND = (*KINDS.values(), *KUBEFLOW_KINDS.values())


def kind_of(step: str, inputs: Mapping[str, Any]) -> JobKind:
    """Return the kind of the job that a step makes of its inputs.

    Raises InputError: if the inputs name no kind, or one that is not known. Raises KeyError: if the
    step makes no job.
    """
    return KINDS[step] if step in KINDS else _CHOOSING[step](inputs)
