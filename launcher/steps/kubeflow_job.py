"""The step `kubeflow_job`: one job of the Training Operator, from its inputs to a Model."""

from __future__ import annotations

from typing import Any

from kfp_pytorch.launcher.jobs.registry import kind_of
from kfp_pytorch.launcher.outputs.artifacts import Artifacts, Places
from kfp_pytorch.launcher.runtime.artifact import Artifact
from kfp_pytorch.launcher.steps.job import run_job

# A signal finds out here what must not outlive the step, however early it comes.
HAS_TARGET = True


def run(
    model: Artifact, metrics: Artifact, curves: Artifact, report: Artifact, **inputs: Any
) -> Places:
    """Trains with a job and waits for its end.

    Returns where the model's export and the job's folder are. Raises StepError: as `run_job` does.
    """
    kind = kind_of("kubeflow_job", inputs)
    return run_job(kind, Artifacts(model, metrics, curves, report), inputs)
