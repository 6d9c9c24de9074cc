"""Trains with a PyTorchJob."""

# ruff: noqa: B006, D417 - kfp reads the defaults, and describes outputs from "Returns"

from typing import Any, NamedTuple

from kfp import dsl
from kfp.dsl import HTML, Markdown, Metrics, Model, Output

from kfp_pytorch.components.caching import uncached
from kfp_pytorch.components.embedding import launcher_component

# What is set on the task goes to the training pods. Only the environment goes to the step's own
# pod too: behind a proxy it needs its variables. It never asks for the accelerators.
_PASSTHROUGHS = (
    dsl.TaskConfigPassthrough(dsl.TaskConfigField.RESOURCES),
    dsl.TaskConfigPassthrough(dsl.TaskConfigField.KUBERNETES_TOLERATIONS),
    dsl.TaskConfigPassthrough(dsl.TaskConfigField.KUBERNETES_NODE_SELECTOR),
    dsl.TaskConfigPassthrough(dsl.TaskConfigField.KUBERNETES_AFFINITY),
    dsl.TaskConfigPassthrough(dsl.TaskConfigField.KUBERNETES_VOLUMES),
    dsl.TaskConfigPassthrough(dsl.TaskConfigField.ENV, apply_to_task=True),
)


@uncached
@launcher_component(task_config_passthroughs=_PASSTHROUGHS)  # type: ignore[untyped-decorator]
def pytorch_job(
    image: str,
    model: Output[Model],
    metrics: Output[Metrics],
    curves: Output[HTML],
    report: Output[Markdown],
    task_config: dsl.TaskConfig,
    name: str = "pytorch-job",
    namespace: str = "",
    command: list[Any] = [],
    args: list[Any] = [],
    hyperparameters: dict[str, Any] = {},
    env: dict[str, Any] = {},
    num_nodes: int = 1,
    nproc_per_node: str = "",
    cpu: str = "",
    memory: str = "",
    gpus_per_node: int = 0,
    gpu_resource: str = "nvidia.com/gpu",
    shm_size: str = "",
    output_uri: str = "pvc://kfp-pytorch",
    key: str = "",
    output_secret: str = "",
    resume_from: str = "",
    service_account: str = "",
    image_pull_secrets: list[Any] = [],
    image_pull_policy: str = "",
    run_as_root: bool = False,
    run_as_user: int = 1000,
    security_context: dict[str, Any] = {},
    node_selector: dict[str, Any] = {},
    tolerations: list[Any] = [],
    affinity: dict[str, Any] = {},
    labels: dict[str, Any] = {},
    annotations: dict[str, Any] = {},
    istio_injection: bool = False,
    backoff_limit: int = -1,
    ttl_seconds: int = 86400,
    clean_pod_policy: str = "Running",
    active_deadline: int = 0,
    restart_policy: str = "OnFailure",
    queue_timeout: int = 0,
    start_timeout: int = 1800,
    timeout: int = 0,
    cleanup: str = "on_failure",
    pod_template_patch: dict[str, Any] = {},
) -> NamedTuple("Outputs", storage_uri=str, folder=str):  # type: ignore[valid-type]
    """Trains with a PyTorchJob and hands on what came of it.

    Creates the job, or adopts the one that an earlier attempt of this step created, and follows it
    to its end. A failed job fails the step, with one message that says why. Accelerators,
    resources, tolerations, node selectors, affinity, environment and volumes that are set on the
    task go to the training pods; an input beats them.

    Args:
        image: The training image.
        task_config: Filled in by KFP with what is set on the task.
        name: The readable part of the job's name; a hash of this step is added.
        namespace: The job's namespace; empty for the step's own.
        command: The container's command as a list; empty for the image's own. No shell.
        args: The command's arguments as a list; each reaches the container byte for byte.
        hyperparameters: Further arguments, each key and value as --key=value. In a pipeline, a
            value may be one of its parameters: a number, true or false, or a text without
            quotation marks and backslashes.
        env: Environment variables: a string, a number, true or false each, or a reference such as
            {"secretKeyRef": {"name": "a-secret", "key": "a-key"}}.
        num_nodes: How many pods train, the first one included.
        nproc_per_node: Processes a pod: a number, auto, cpu or gpu; empty for one for each GPU,
            or one.
        cpu: CPU of each pod, such as 4 or 500m, requested and limited.
        memory: Memory of each pod, such as 16Gi, requested and limited.
        gpus_per_node: Accelerators of each pod; 0 for what is set on the task.
        gpu_resource: The accelerators' resource name.
        shm_size: Size of /dev/shm, such as 8Gi; empty for memory without a limit of its own; 0 for
            the 64 MiB that a container has otherwise.
        output_uri: Where jobs keep their folders: pvc://CLAIM/path, s3://, gs:// or minio://.
        key: The folder between output_uri and the job's own, such as the run's id.
        output_secret: A Secret whose entries become variables of the training container, such as
            AWS_ACCESS_KEY_ID; for gs:// its gcloud-application-credentials.json is mounted.
        resume_from: Another job's folder, such as its step's output `folder`, to start from; read
            only.
        service_account: The training pods' service account; empty for the namespace's default.
        image_pull_secrets: Names of the Secrets to pull the image with.
        image_pull_policy: IfNotPresent, Always or Never; empty for the cluster's default.
        run_as_root: Whether the image must run as root; else the pods keep to the restricted Pod
            Security Standard.
        run_as_user: The user id, and the group that owns a mounted claim; 0 for the image's own
            user, which must be a number other than 0.
        security_context: Changes to the pods' securityContext; null takes a default away (an
            argument of a run on a cluster may hold it, a constant of a pipeline may not).
        node_selector: Labels that a node must have.
        tolerations: Taints that the pods tolerate, as a list of Kubernetes' objects.
        affinity: The pods' affinity, as Kubernetes' object.
        labels: Labels of the job and its pods, such as kueue.x-k8s.io/queue-name.
        annotations: Annotations of the job and its pods.
        istio_injection: Whether a service mesh may put its proxy into the training pods.
        backoff_limit: Restarts at which the job fails, summed over all pods; -1 for three of the
            whole job, which is three for each node.
        ttl_seconds: Seconds that a finished job is kept, at least 120; -1 for ever.
        clean_pod_policy: Which pods go when the job ends: Running, All, or Keep for none.
        active_deadline: Seconds after which the operator itself ends the job; 0 for no limit.
        restart_policy: What becomes of a failed pod: OnFailure, Never, Always or ExitCode.
        queue_timeout: Seconds that the job may wait in a queue, suspended; 0 for no limit.
        start_timeout: Seconds until every pod must run, the queue not counted; 0 for no limit.
        timeout: Seconds that the job may run; 0 for no limit.
        cleanup: When the job is deleted: on_failure (when it did not succeed, or the run was
            ended), always or never.
        pod_template_patch: A strategic merge patch of the pod template, with metadata or spec.

    Returns:
        model: What was trained: the description of the export and held-out samples. The weights
            stay at `storage_uri`, which is in its metadata.
        metrics: The final metrics that training reported.
        curves: How loss and metrics went, as one page.
        report: What ran: the job as submitted, its timeline, nodes and restarts.
        storage_uri: Where the exported model lies, as KServe reads it.
        folder: The job's folder, as output_uri/key/job, to resume another job from.
    """
    inputs = dict(locals())
    from kfp_pytorch.launcher import run_step

    return run_step("pytorch_job", **inputs)
