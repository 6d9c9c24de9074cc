"""The interface of each component: what it is, its inputs, its artifacts and its outputs.

`components/generate.py` writes the components and the tables of their READMEs from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_pytorch.launcher.jobs.pytorchjob.inputs import PyTorchJobInputs
from kfp_pytorch.launcher.kserve.deploy_inputs import DeployInputs
from kfp_pytorch.launcher.kserve.predict_inputs import PredictInputs
from kfp_pytorch.launcher.steps.metric_gate import GateInputs
from kfp_pytorch.launcher.steps.tensorboard import View


@dataclass(frozen=True)
class Interface:
    """The interface of a component.

    Attributes:
        name: The component's name; also its step's and its folder's.
        summary: What it does, in one line.
        details: What a user must know besides.
        inputs: The dataclass that declares its inputs.
        input_artifacts: Type and description of each artifact that it takes.
        output_artifacts: Type and description of each artifact that it makes.
        outputs: Type and description of each output parameter.
    """

    name: str
    summary: str
    details: str
    inputs: type[Any]
    input_artifacts: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    output_artifacts: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    outputs: Mapping[str, tuple[str, str]] = field(default_factory=dict)


INTERFACES = (
    Interface(
        name="kserve_deploy",
        summary="Serves a model with KServe and waits until the new revision answers.",
        details="Creates the InferenceService or changes the one of that name, which keeps serving "
        "its last revision until the new one is ready. A service is never deleted.",
        inputs=DeployInputs,
        input_artifacts={
            "model": (
                "Model",
                "The model, from pytorch_job or imported. It is read from the "
                "storage_uri in its metadata, or else from its URI; minio:// becomes s3://.",
            )
        },
        outputs={
            "url": ("str", "The exact URL of predictions, for callers outside of the cluster."),
            "cluster_url": ("str", "The same for callers within the cluster."),
            "service_name": ("str", "The InferenceService's name."),
            "revision": (
                "str",
                "The hash of what was deployed, in the annotation kfp-pytorch/spec-hash of its "
                "pods.",
            ),
        },
    ),
    Interface(
        name="kserve_predict",
        summary="Sends requests with known answers to a model server and fails on a wrong answer.",
        details='A server that cannot be reached yet (such as 404, 503, no connection, "not '
        'ready") is asked again until ready_timeout; one that refuses the request (such as 400, '
        "401, 403) is not.",
        inputs=PredictInputs,
        input_artifacts={
            "model": ("Model", "The model that is served; its held-out samples are what is asked.")
        },
        output_artifacts={"predictions": ("Markdown", "The requests with their answers.")},
        outputs={
            "correct": ("float", "The share of right answers."),
            "sample_prediction": ("str", "The first answer, as JSON."),
        },
    ),
    Interface(
        name="metric_gate",
        summary="Lets a pipeline continue only with a metric that is good enough.",
        details="Fails, and so stops what comes after it, when the metric is beyond a threshold, "
        "is not there, or is no finite number; the message says which and by how much.",
        inputs=GateInputs,
        input_artifacts={"metrics": ("Metrics", "The metrics, as an output of pytorch_job.")},
        outputs={"value": ("float", "The metric's value.")},
    ),
    Interface(
        name="pytorch_job",
        summary="Trains with a PyTorchJob and outputs a model, its metrics, curves and a report.",
        details="Creates the job, or adopts the one that an earlier attempt of this step created, "
        "and follows it to its end. A failed job fails the step, with one message about it. "
        "Accelerators, resources, tolerations, node selectors, affinity, environment and volumes "
        "that are set on the task go to the training pods; an input overrides them.",
        inputs=PyTorchJobInputs,
        output_artifacts={
            "model": (
                "Model",
                "What was trained: the description of the export and held-out samples. The "
                "weights stay at `storage_uri`, which is in its metadata.",
            ),
            "metrics": ("Metrics", "The final metrics that training reported."),
            "curves": ("HTML", "The curves of loss and metrics, as one page."),
            "report": (
                "Markdown",
                "What ran: the job as submitted, its timeline, nodes and restarts.",
            ),
        },
        outputs={
            "storage_uri": ("str", "The URI of the exported model, as KServe reads it."),
            "folder": (
                "str",
                "The job's folder, as output_uri/key/job, to resume another job from.",
            ),
        },
    ),
    Interface(
        name="tensorboard",
        summary="Opens TensorBoard on the logs of all jobs below output_uri/key, before they are "
        "written.",
        details="Writes what the viewer of a multi-user KFP reads, creates a Tensorboard object "
        "where the cluster has that kind, it is allowed, and it does no harm, and writes the "
        "commands for every other cluster. It never fails the run for any of them.",
        inputs=View,
        output_artifacts={
            "mlpipeline_ui_metadata": (
                "Artifact",
                "What the viewer of a multi-user KFP reads: its Visualization tab is the view.",
            ),
            "how_to_open": ("Markdown", "How TensorBoard opens on this cluster, with commands."),
        },
        outputs={"shown": ("str", "What was made, as text.")},
    ),
)
