"""Pipeline components: thin definitions over `kfp_pytorch.launcher`.

They run twice: in the author's Python, where they import kfp, and in a step, where the same modules
give the plain functions and import the launcher when they are called.

The functions of `scheduling` say for an author where a job's pods run.
"""

from kfp_pytorch.components.canary_check.component import canary_check
from kfp_pytorch.components.compare_jobs.component import compare_jobs
from kfp_pytorch.components.distributed.distribute import distribute
from kfp_pytorch.components.kserve_deploy.component import kserve_deploy
from kfp_pytorch.components.kserve_predict.component import kserve_predict
from kfp_pytorch.components.kserve_rollout.component import kserve_rollout
from kfp_pytorch.components.kubeflow_job.component import kubeflow_job
from kfp_pytorch.components.metric_gate.component import metric_gate
from kfp_pytorch.components.preflight.component import preflight
from kfp_pytorch.components.pytorch_job.component import pytorch_job
from kfp_pytorch.components.register_model.component import register_model
from kfp_pytorch.components.scheduling import (
    coscheduling,
    cpu_pinning,
    gpus,
    host_ipc,
    kai,
    kueue,
    mig,
    pack,
    placement,
    priority,
    rdma,
    same,
    same_nvlink_domain,
    same_rack,
    same_zone,
    spread,
    tolerate,
    volcano,
    yunikorn,
)
from kfp_pytorch.components.source import source
from kfp_pytorch.components.tensorboard.component import tensorboard
from kfp_pytorch.components.train_job.component import train_job

__all__ = [
    "canary_check",
    "compare_jobs",
    "coscheduling",
    "cpu_pinning",
    "distribute",
    "gpus",
    "host_ipc",
    "kai",
    "kserve_deploy",
    "kserve_predict",
    "kserve_rollout",
    "kubeflow_job",
    "kueue",
    "metric_gate",
    "mig",
    "pack",
    "placement",
    "preflight",
    "priority",
    "pytorch_job",
    "rdma",
    "register_model",
    "same",
    "same_nvlink_domain",
    "same_rack",
    "same_zone",
    "source",
    "spread",
    "tensorboard",
    "tolerate",
    "train_job",
    "volcano",
    "yunikorn",
]
