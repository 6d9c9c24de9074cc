"""How the pipelines here set up a step that drives something on the cluster."""

import json

from kfp import dsl, kubernetes

from kfp_pytorch.components import kserve_deploy, kserve_predict, metric_gate

# The autoscaler would move the pod, and with it what it waits for starts from the last checkpoint.
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
# By default Argo signals the container's whole process group. KFP's launcher dies of it at once,
# and the step's program within a second, its request to delete the job perhaps not yet sent. This
# command signals Python alone: the program then has the pod's whole grace period. Argo puts the
# signal's number for `%d`.
KILL_COMMAND = "workflows.argoproj.io/kill-cmd-main"
_SIGNAL_PYTHON = (
    'for p in /proc/[0-9]*; do case "$(readlink "$p/exe")" in '
    '*python*) kill -%d "${p#/proc/}";; esac; done'
)


def long_running(task: dsl.PipelineTask) -> dsl.PipelineTask:
    """Sets up a step that waits for something long: it is not moved meanwhile."""
    kubernetes.add_pod_annotation(task, SAFE_TO_EVICT, "false")
    kill = json.dumps(["sh", "-c", _SIGNAL_PYTHON])
    return kubernetes.add_pod_annotation(task, KILL_COMMAND, kill)


def serve_if_good(
    job: dsl.PipelineTask, min_accuracy: float, service_name: str, service_account: str
) -> None:
    """Adds the steps after training: a gate, the deployment, and requests with known answers."""
    gate = metric_gate(
        metrics=job.outputs["metrics"], metric="accuracy", minimum=min_accuracy
    ).set_display_name("Good enough?")

    service = kserve_deploy(
        model=job.outputs["model"],
        service_name=service_name,
        service_account=service_account,
    )
    long_running(service).after(gate).set_display_name("Deploy")

    answers = kserve_predict(url=service.outputs["cluster_url"], model=job.outputs["model"])
    answers.set_display_name("Check answers")
