"""Pipeline components: thin definitions over `kfp_pytorch.launcher`.

They run twice: in the author's Python, where they import kfp, and in a step, where the same modules
give the plain functions and import the launcher when they are called.
"""

from kfp_pytorch.components.canary_check.component import canary_check
from kfp_pytorch.components.kserve_deploy.component import kserve_deploy
from kfp_pytorch.components.kserve_predict.component import kserve_predict
from kfp_pytorch.components.kserve_rollout.component import kserve_rollout
from kfp_pytorch.components.kubeflow_job.component import kubeflow_job
from kfp_pytorch.components.metric_gate.component import metric_gate
from kfp_pytorch.components.preflight.component import preflight
from kfp_pytorch.components.pytorch_job.component import pytorch_job
from kfp_pytorch.components.register_model.component import register_model
from kfp_pytorch.components.tensorboard.component import tensorboard
from kfp_pytorch.components.train_job.component import train_job

__all__ = [
    "canary_check",
    "kserve_deploy",
    "kserve_predict",
    "kserve_rollout",
    "kubeflow_job",
    "metric_gate",
    "preflight",
    "pytorch_job",
    "register_model",
    "tensorboard",
    "train_job",
]
