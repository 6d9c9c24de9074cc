"""The inputs of `pytorch_job`: their declaration and their checks.

`manifest.py` makes the PyTorchJob of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import environment, k8s, placement, readers, storage, task_config
from kfp_pytorch.launcher.inputs.declaration import declare, inputs_of, parse
from kfp_pytorch.launcher.inputs.storage import Location
from kfp_pytorch.launcher.jobs.kind import JobInputs
from kfp_pytorch.launcher.jobs.pytorchjob import input_readers

# A crash of a distributed job counts once a node, so this many restarts of the whole job.
RESTARTS_BEFORE_FAILURE = 3
MAX_NODES = 10_000


@dataclass(frozen=True)
class PyTorchJobInputs(JobInputs):
    """The checked inputs of `pytorch_job`, and what follows from several of them."""

    image: str = declare(input_readers.training_image, None, "The training image.")
    task_config: task_config.TaskSettings = declare(
        task_config.read,
        None,
        "Filled in by KFP with what is set on the task.",
        type_name="dsl.TaskConfig",
    )
    name: str = declare(
        input_readers.job_name,
        "pytorch-job",
        "The readable part of the job's name; a hash of this step is added.",
    )
    namespace: str = declare(k8s.dns_label, "", "The job's namespace; empty for the step's own.")
    command: tuple[str, ...] = declare(
        input_readers.command,
        [],
        "The container's command as a list; empty for the image's own. There is no shell.",
    )
    args: tuple[str, ...] = declare(
        readers.strings,
        [],
        "The command's arguments as a list; each reaches the container byte for byte.",
    )
    hyperparameters: dict[str, str] = declare(
        input_readers.hyperparameters,
        {},
        "Further arguments, each key and value as --key=value. In a pipeline, a value may be "
        "one of its parameters: a number, true or false, or a text without quotation marks and "
        "backslashes.",
    )
    env: tuple[dict[str, Any], ...] = declare(
        environment.variables,
        {},
        "Environment variables: a string, a number, true or false each, or a reference such "
        'as {"secretKeyRef": {"name": "a-secret", "key": "a-key"}}.',
    )
    num_nodes: int = declare(
        partial(readers.integer, minimum=1, maximum=MAX_NODES),
        1,
        "How many pods train, the first one included.",
    )
    nproc_per_node: str = declare(
        input_readers.processes,
        "",
        "Processes in each pod: a number, auto, cpu or gpu; empty for one for each GPU, or one.",
    )
    cpu: str = declare(k8s.cpu, "", "CPU of each pod, such as 4 or 500m, requested and limited.")
    memory: str = declare(
        k8s.memory, "", "Memory of each pod, such as 16Gi, requested and limited."
    )
    gpus_per_node: int = declare(
        partial(readers.integer, maximum=4096),
        0,
        "Accelerators of each pod; 0 for what is set on the task.",
    )
    gpu_resource: str = declare(
        placement.gpu_resource, placement.GPU_RESOURCE, "The accelerators' resource name."
    )
    shm_size: str = declare(
        input_readers.shm_size,
        "",
        "Size of /dev/shm, such as 8Gi; empty for memory without a limit of its own; 0 for "
        "the 64 MiB that a container has otherwise.",
    )
    output_uri: Location = declare(
        storage.location,
        constants.DEFAULT_OUTPUT_URI,
        "Where jobs keep their folders: pvc://CLAIM/path, s3://, gs:// or minio://.",
    )
    key: str = declare(
        storage.relative,
        "",
        "The folder between output_uri and the job's own, such as the run's id.",
    )
    output_secret: str = declare(
        k8s.dns_subdomain,
        "",
        "A Secret whose entries become variables of the training container, such as "
        "AWS_ACCESS_KEY_ID; for gs:// its gcloud-application-credentials.json is mounted.",
    )
    resume_from: Location | None = declare(
        storage.optional_location,
        "",
        "Another job's folder, such as its step's output `folder`, to start from; read only.",
    )
    service_account: str = declare(
        k8s.dns_subdomain,
        "",
        "The training pods' service account; empty for the namespace's default.",
    )
    image_pull_secrets: tuple[str, ...] = declare(
        input_readers.pull_secrets, [], "Names of the Secrets to pull the image with."
    )
    image_pull_policy: str = declare(
        readers.one_of("", "IfNotPresent", "Always", "Never"),
        "",
        "IfNotPresent, Always or Never; empty for the cluster's default.",
    )
    run_as_root: bool = declare(
        readers.boolean,
        False,
        "Whether the image must run as root; else the pods keep to the restricted Pod "
        "Security Standard.",
    )
    run_as_user: int = declare(
        readers.integer,
        1000,
        "The user id, and the group that owns a mounted claim; 0 for the image's own user, "
        "which must be a number other than 0.",
    )
    security_context: dict[str, Any] = declare(
        placement.security_context,
        {},
        "Changes to the pods' securityContext; null removes a default (an argument of a run "
        "on a cluster may hold it, a constant of a pipeline may not).",
    )
    node_selector: dict[str, str] = declare(k8s.label_map, {}, "Labels that a node must have.")
    tolerations: tuple[dict[str, Any], ...] = declare(
        placement.tolerations,
        [],
        "Taints that the pods tolerate, as a list of Kubernetes' objects.",
    )
    affinity: dict[str, Any] = declare(
        placement.affinity, {}, "The pods' affinity, as Kubernetes' object."
    )
    labels: dict[str, str] = declare(
        input_readers.job_labels,
        {},
        "Labels of the job and its pods, such as kueue.x-k8s.io/queue-name.",
    )
    annotations: dict[str, str] = declare(
        input_readers.job_annotations, {}, "Annotations of the job and its pods."
    )
    istio_injection: bool = declare(
        readers.boolean, False, "Whether a service mesh may put its proxy into the training pods."
    )
    backoff_limit: int = declare(
        partial(readers.integer, minimum=-1),
        -1,
        "Restarts at which the job fails, summed over all pods; -1 for three of the whole "
        "job, which is three for each node.",
    )
    ttl_seconds: int = declare(
        input_readers.ttl,
        86_400,
        "Seconds that a finished job is kept, at least 120; -1 for no limit.",
    )
    clean_pod_policy: str = declare(
        input_readers.clean_pod_policy,
        "Running",
        "Which pods are deleted when the job ends: Running, All, or Keep for none.",
    )
    active_deadline: int = declare(
        readers.integer,
        0,
        "Seconds that the job may take in all, its start included; 0 for no limit.",
    )
    restart_policy: str = declare(
        readers.one_of("OnFailure", "Never", "Always", "ExitCode"),
        "OnFailure",
        "When a failed pod is restarted: OnFailure, Never, Always or ExitCode.",
    )
    queue_timeout: int = declare(
        readers.integer, 0, "Seconds that the job may wait in a queue, suspended; 0 for no limit."
    )
    start_timeout: int = declare(
        readers.integer,
        1_800,
        "Seconds until every pod must run, the queue not counted; 0 for no limit.",
    )
    timeout: int = declare(readers.integer, 0, "Seconds that the job may run; 0 for no limit.")
    cleanup: str = declare(
        readers.one_of("on_failure", "always", "never"),
        "on_failure",
        "When the job is deleted: on_failure (when it did not succeed, or the run was ended), "
        "always or never.",
    )
    pod_template_patch: dict[str, Any] = declare(
        input_readers.template_patch,
        {},
        "A strategic merge patch of the pod template, with metadata or spec.",
    )

    def folder(self, job_name: str) -> Location:
        """Return the job's own folder, `<output_uri>/<key>/<job name>`."""
        return storage.job_folder(self.output_uri, self.key, job_name)

    @property
    def resources(self) -> dict[str, dict[str, str]]:
        """The container's `resources`."""
        return placement.resources(
            self.task_config.resources,
            {"cpu": self.cpu, "memory": self.memory},
            self.gpu_resource,
            self.gpus_per_node,
        )

    @property
    def gpus(self) -> int:
        """Accelerators of each pod, of any kind."""
        return placement.accelerators(self.resources)

    def spec(self) -> dict[str, Any]:
        """Return all that the job is made of, in JSON form.

        Its hash is a label of the job, so its keys stay as they are from version to version.
        """
        merged = ("cpu", "memory", "gpus_per_node", "gpu_resource", "hyperparameters")
        spec = asdict(self)
        for name in merged:
            del spec[name]
        task = spec.pop("task_config")
        return spec | {
            "output": spec.pop("output_uri"),
            "resources": self.resources,
            "gpus": self.gpus,
            "volumes": task["volumes"],
            "volume_mounts": task["volume_mounts"],
        }


def input_names() -> frozenset[str]:
    """Return the names that `parse_inputs` takes."""
    return frozenset(inputs_of(PyTorchJobInputs))


def parse_inputs(**inputs: Any) -> PyTorchJobInputs:
    """Check the inputs of `pytorch_job`.

    `inputs`: the component's inputs by name, as KFP passes them. Returns the inputs, with defaults
    filled in, the hyperparameters at the end of `args`, and the task's own settings merged where an
    input does not override them. Raises InputError: if one is unknown or cannot work; the message
    names it, its value, the limit and the way out.
    """
    given = parse(PyTorchJobInputs, "pytorch_job", inputs)
    task = given.task_config
    restarts = RESTARTS_BEFORE_FAILURE * given.num_nodes
    merged = replace(
        given,
        args=_with_hyperparameters(given.args, given.hyperparameters),
        env=environment.merged(given.env, task.env),
        nproc_per_node=given.nproc_per_node or str(max(1, given.gpus)),
        node_selector=task.node_selector | given.node_selector,
        tolerations=placement.merged_tolerations(given.tolerations, task.tolerations),
        affinity=task.affinity | given.affinity,
        backoff_limit=restarts if given.backoff_limit < 0 else given.backoff_limit,
    )
    environment.check_size(merged.command, merged.args, merged.env)
    return merged


def _with_hyperparameters(
    args: tuple[str, ...], hyperparameters: dict[str, str]
) -> tuple[str, ...]:
    """Add the hyperparameters as `--key=value`: a value may then begin with a dash."""
    flags = {f"--{key}" for key in hyperparameters}
    for index, word in enumerate(args):
        flag = word.partition("=")[0]
        if flag in flags:
            raise InputError(
                f"args[{index}] gives {flag}, and so do the hyperparameters, which come last: most "
                "programs would pass over args. Give it in one of them."
            )
    return args + tuple(f"--{key}={value}" for key, value in hyperparameters.items())
