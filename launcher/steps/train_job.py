"""The step `train_job`: one TrainJob from its inputs to a Model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kfp_pytorch.launcher.constants import (
    CLUSTER_TRAINING_RUNTIME,
    TRAINING_RUNTIME,
    TRAINJOB,
)
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.jobs.registry import KINDS
from kfp_pytorch.launcher.jobs.trainjob.forms import CURRENT, Form, read_form
from kfp_pytorch.launcher.jobs.trainjob.inputs import TrainJobInputs
from kfp_pytorch.launcher.jobs.trainjob.runtimes import check_runtime
from kfp_pytorch.launcher.kubernetes.api_errors import ApiError, KindAbsent, NotFound
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.schemas import read_schema
from kfp_pytorch.launcher.outputs.artifacts import Artifacts, Places
from kfp_pytorch.launcher.runtime.artifact import Artifact
from kfp_pytorch.launcher.runtime.printing import log
from kfp_pytorch.launcher.steps.job import run_job

# A signal finds out here what must not outlive the step, however early it comes.
HAS_TARGET = True
_RUNTIMES = {kind.kind: kind for kind in (CLUSTER_TRAINING_RUNTIME, TRAINING_RUNTIME)}


def run(
    model: Artifact, metrics: Artifact, curves: Artifact, report: Artifact, **inputs: Any
) -> Places:
    """Trains with a TrainJob and waits for its end.

    Returns where the model's export and the job's folder are. Raises StepError: as `run_job` does.
    """
    outputs = Artifacts(model, metrics, curves, report)
    return run_job(KINDS["train_job"], outputs, inputs, prepare=fitted_to_cluster)


def fitted_to_cluster(kube: Kube, inputs: TrainJobInputs, job_name: str) -> TrainJobInputs:
    """Finds out what the cluster's Trainer can do, and checks the runtime.

    Raises InputError: the runtime is not there, or cannot run this job.
    """
    fitted = inputs if inputs.patch_form else replace(inputs, form=_form(kube))
    try:
        # A job of an earlier attempt has its runtime.
        kube.get(TRAINJOB, job_name)
    except NotFound:
        _check_runtime(kube, fitted, job_name)
    except KindAbsent:
        # Just after an installation it may be known soon: the create waits for it.
        pass
    return fitted


def _form(kube: Kube) -> Form:
    try:
        form = read_form(read_schema(kube, TRAINJOB))
        why = "the schema of its TrainJobs says nothing of it"
    except ApiError as error:
        form, why = None, error.short
    if form is None:
        log(
            f"warning: how this cluster's Trainer has its runtimes patched could not be read "
            f"({why}); taking {CURRENT.field}, as since Trainer 2.2. Where that is refused, give "
            "patch_form."
        )
    return form or CURRENT


def _check_runtime(kube: Kube, inputs: TrainJobInputs, job_name: str) -> None:
    kind = _RUNTIMES[inputs.runtime_kind]
    try:
        runtime = kube.get(kind, inputs.runtime)
    except NotFound as error:
        where = f" in namespace {kube.namespace!r}" if kind.namespaced else ""
        raise InputError(
            f"runtime is {inputs.runtime!r}, and there is no {kind.kind} of that name{where}. "
            f"Create it, or give the name of one that is there (`kubectl get {kind.plural}`); "
            "runtime_kind says of which kind it is."
        ) from error
    except ApiError as error:
        # The Trainer itself refuses a job whose runtime is not there.
        log(f"the {kind.kind} {inputs.runtime!r} could not be checked: {error.short}")
        return
    check_runtime(runtime, inputs, job_name)
