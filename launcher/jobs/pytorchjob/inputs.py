"""The inputs of `pytorch_job` as a checked, frozen dataclass."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import environment, placement, readers, storage, task_config
from kfp_pytorch.launcher.inputs.storage import Location

# The launcher polls every 30 s while watches break; a job that is gone after fewer than four
# polls could have ended unseen. In seconds, as all times here.
TTL_MINIMUM = 120
TTL_DEFAULT = 86_400
START_TIMEOUT_DEFAULT = 1_800
# A crash of a distributed job counts once a node, so this many restarts of the whole job.
RESTARTS_BEFORE_FAILURE = 3
MAX_NODES = 10_000
DEFAULT_NAME = "pytorch-job"
DEFAULT_USER = 1000
CLEANUPS = ("on_failure", "always", "never")
# The operator's `None`, which holds GPUs after the end, is written Keep: KFP's unset is 'None'.
CLEAN_POD_POLICIES = {"Running": "Running", "All": "All", "Keep": "None"}
RESTART_POLICIES = ("OnFailure", "Never", "Always", "ExitCode")
PULL_POLICIES = ("", "IfNotPresent", "Always", "Never")


@dataclass(frozen=True)
class PyTorchJobInputs:
    """Everything that a PyTorchJob of ours is made of, checked.

    Attributes:
        image: The training image.
        name: The readable part of the job's name, not yet made a valid one.
        namespace: The job's namespace; empty for the launcher's own.
        command: The container's command; empty for the image's own.
        args: The command's arguments, those made of the hyperparameters last.
        env: The container's environment, as the objects of a container's `env`.
        num_nodes: How many pods train.
        nproc_per_node: Processes a pod: a number, or `auto`, `cpu` or `gpu`.
        resources: The container's `resources`.
        gpus: Accelerators a node, of whatever kind.
        shm_size: Size of /dev/shm as a quantity, `0` for a usual one, empty for no limit.
        output: Where jobs keep their folders.
        key: The folder between `output` and the job's own.
        output_secret: The Secret with the credentials of the bucket; empty for none.
        resume_from: Another job's folder to start from.
        service_account: The pods' service account; empty for the namespace's default.
        image_pull_secrets: Names of the Secrets to pull the image with.
        image_pull_policy: Empty for the cluster's default.
        run_as_root: Whether the container may run as root.
        run_as_user: The user id; 0 for the image's own.
        security_context: Changes to the pod's security context.
        node_selector: Labels that a node must have.
        tolerations: Taints that the pods tolerate.
        affinity: The pods' affinity.
        volumes: Volumes that the author mounted on the task.
        volume_mounts: Where they are mounted.
        labels: Labels of the job and its pods.
        annotations: Annotations of the job and its pods.
        istio_injection: Whether the mesh may put its proxy into the pods.
        backoff_limit: Restarts, summed over all pods, at which the job fails.
        ttl_seconds: Seconds that a finished job is kept; -1 for ever.
        clean_pod_policy: Which pods the operator deletes when the job ends.
        active_deadline: Seconds after which the operator ends the job; 0 for no limit.
        restart_policy: What the operator does with a pod that failed.
        queue_timeout: Seconds that the job may be suspended; 0 for no limit.
        start_timeout: Seconds until every pod must run; 0 for no limit.
        timeout: Seconds that the job may run; 0 for no limit.
        cleanup: When the launcher deletes the job: `on_failure`, `always` or `never`.
        pod_template_patch: A strategic merge patch of the pod template.
    """

    image: str
    name: str
    namespace: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: tuple[dict[str, Any], ...]
    num_nodes: int
    nproc_per_node: str
    resources: dict[str, dict[str, str]]
    gpus: int
    shm_size: str
    output: Location
    key: str
    output_secret: str
    resume_from: Location | None
    service_account: str
    image_pull_secrets: tuple[str, ...]
    image_pull_policy: str
    run_as_root: bool
    run_as_user: int
    security_context: dict[str, Any]
    node_selector: dict[str, str]
    tolerations: tuple[dict[str, Any], ...]
    affinity: dict[str, Any]
    volumes: tuple[dict[str, Any], ...]
    volume_mounts: tuple[dict[str, Any], ...]
    labels: dict[str, str]
    annotations: dict[str, str]
    istio_injection: bool
    backoff_limit: int
    ttl_seconds: int
    clean_pod_policy: str
    active_deadline: int
    restart_policy: str
    queue_timeout: int
    start_timeout: int
    timeout: int
    cleanup: str
    pod_template_patch: dict[str, Any]

    def folder(self, job_name: str) -> Location:
        """Return the job's own folder, `<output_uri>/<key>/<job name>`."""
        return storage.job_folder(self.output, self.key, job_name)


_RAW_ONLY = frozenset(
    {
        *("cpu", "memory", "gpus_per_node", "gpu_resource"),
        *("hyperparameters", "output_uri", "task_config"),
    }
)
_CHECKED_ONLY = frozenset({"resources", "gpus", "output", "volumes", "volume_mounts"})


def input_names() -> frozenset[str]:
    """Return the names that `parse_inputs` takes."""
    return (frozenset(f.name for f in fields(PyTorchJobInputs)) - _CHECKED_ONLY) | _RAW_ONLY


def parse_inputs(**inputs: Any) -> PyTorchJobInputs:
    """Check the inputs of `pytorch_job`.

    Args:
        **inputs: The component's inputs by name, as KFP hands them over. '', 'None', 'null', [],
            {}, None and an absent input are alike: unset.

    Returns:
        The inputs, with defaults filled in and the task's own settings merged below them.

    Raises:
        InputError: If one is unknown or cannot work; the message names it, its value, the limit
            and the way out.
    """
    unknown = sorted(set(inputs) - input_names())
    if unknown:
        raise InputError(f"pytorch_job has no input {unknown[0]!r}.")
    settings = task_config.read(inputs.get("task_config"))
    resources, gpus = _resources(inputs, settings)
    num_nodes = readers.integer(
        "num_nodes", inputs.get("num_nodes"), default=1, minimum=1, maximum=MAX_NODES
    )
    parsed = PyTorchJobInputs(
        **_program(inputs, settings),
        **_storage(inputs),
        **_pod(inputs, settings),
        **_policies(inputs, num_nodes),
        num_nodes=num_nodes,
        nproc_per_node=_nproc(inputs.get("nproc_per_node"), gpus),
        resources=resources,
        gpus=gpus,
    )
    environment.check_size(parsed.command, parsed.args, parsed.env)
    return parsed


def _program(inputs: dict[str, Any], settings: task_config.TaskSettings) -> dict[str, Any]:
    image = readers.image("image", inputs.get("image"))
    if not image:
        raise InputError("image is not set; give the name of the training image.")
    return {
        "image": image,
        "name": _name(inputs.get("name")),
        "namespace": readers.dns_label("namespace", inputs.get("namespace")),
        "command": _command(inputs.get("command")),
        "args": _arguments(inputs),
        "env": _environment(inputs.get("env"), settings),
        "image_pull_policy": readers.choice(
            "image_pull_policy", inputs.get("image_pull_policy"), PULL_POLICIES
        ),
    }


def _environment(value: Any, settings: task_config.TaskSettings) -> tuple[dict[str, Any], ...]:
    env = environment.merged(value, settings.env)
    for variable in env:
        environment.check_free(str(variable["name"]), "env")
    return env


def _command(value: Any) -> tuple[str, ...]:
    command = readers.strings("command", value)
    if command and not command[0].strip():
        raise InputError(
            f"command[0] is {command[0]!r}, which names no program; leave command out for the "
            "image's own."
        )
    return command


def _arguments(inputs: dict[str, Any]) -> tuple[str, ...]:
    args = readers.strings("args", inputs.get("args"))
    options = _options(inputs.get("hyperparameters"))
    made = {option.partition("=")[0] for option in options}
    for index, word in enumerate(args):
        flag = word.partition("=")[0]
        if flag in made:
            raise InputError(
                f"args[{index}] gives {flag}, and so do the hyperparameters, which come last: most "
                "programs would pass over args. Give it in one of them."
            )
    return args + options


def _options(value: Any) -> tuple[str, ...]:
    """Render an object as `--key=value` arguments: a value may then begin with a dash."""
    options = readers.mapping("hyperparameters", value)
    for key in options:
        if not re.fullmatch(r"[^\s=-][^\s=]*", readers.printable("hyperparameters", key)):
            raise InputError(
                f"hyperparameters has the key {key!r}; it becomes --KEY=VALUE, so write it without "
                "dashes before it, and without blanks and '='."
            )
    return tuple(
        f"--{key}={readers.rendered(f'hyperparameters[{key!r}]', item)}"
        for key, item in options.items()
    )


def _name(value: Any) -> str:
    name = readers.text("name", value, DEFAULT_NAME)
    if not re.search(r"[A-Za-z0-9]", name):
        raise InputError(
            f"name is {name!r}, which no job can be called after; it needs a letter a-z or a digit."
        )
    return name


def _nproc(value: Any, gpus: int) -> str:
    default = str(max(1, gpus))
    word = default if readers.unset(value) else readers.rendered("nproc_per_node", value).strip()
    if word in ("auto", "cpu", "gpu"):
        return word
    if not word.lstrip("+-").isdecimal():
        raise InputError(f"nproc_per_node is {word!r}; it must be a number, auto, cpu or gpu.")
    return str(readers.integer("nproc_per_node", word, default=1, minimum=1, maximum=4096))


def _resources(
    inputs: dict[str, Any], settings: task_config.TaskSettings
) -> tuple[dict[str, dict[str, str]], int]:
    gpus = readers.integer("gpus_per_node", inputs.get("gpus_per_node"), default=0, maximum=4096)
    explicit = {
        "cpu": readers.quantity("cpu", inputs.get("cpu"), minimum="1m"),
        "memory": readers.quantity("memory", inputs.get("memory"), minimum="1Mi"),
    }
    resource = placement.gpu_resource(inputs.get("gpu_resource"))
    return placement.resources(settings.resources, explicit, resource, gpus)


def _storage(inputs: dict[str, Any]) -> dict[str, Any]:
    output_uri = readers.text("output_uri", inputs.get("output_uri"), constants.DEFAULT_OUTPUT_URI)
    resume_from = readers.text("resume_from", inputs.get("resume_from"))
    return {
        "output": storage.parse(output_uri),
        "key": storage.relative(readers.text("key", inputs.get("key")), "key"),
        "output_secret": readers.dns_subdomain("output_secret", inputs.get("output_secret")),
        "resume_from": storage.parse(resume_from, "resume_from") if resume_from else None,
    }


def _pod(inputs: dict[str, Any], settings: task_config.TaskSettings) -> dict[str, Any]:
    secrets = readers.strings("image_pull_secrets", inputs.get("image_pull_secrets"))
    shm_size = inputs.get("shm_size")
    off = shm_size is not None and str(shm_size).strip() in ("0", "0.0")
    return {
        "shm_size": "0" if off else readers.quantity("shm_size", shm_size, minimum="1Mi"),
        "service_account": readers.dns_subdomain("service_account", inputs.get("service_account")),
        # Each once, as a real API server wants it.
        "image_pull_secrets": tuple(
            dict.fromkeys(
                readers.dns_subdomain(f"image_pull_secrets[{i}]", name)
                for i, name in enumerate(secrets)
            )
        ),
        "run_as_root": readers.boolean("run_as_root", inputs.get("run_as_root")),
        "run_as_user": readers.integer(
            "run_as_user", inputs.get("run_as_user"), default=DEFAULT_USER
        ),
        "security_context": placement.security_context(inputs.get("security_context")),
        "node_selector": placement.node_selector(
            inputs.get("node_selector"), settings.node_selector
        ),
        "tolerations": placement.tolerations(inputs.get("tolerations"), settings.tolerations),
        "affinity": placement.affinity(inputs.get("affinity"), settings.affinity),
        "volumes": tuple(settings.volumes),
        "volume_mounts": tuple(settings.volume_mounts),
        "labels": _reserved("labels", readers.label_map("labels", inputs.get("labels"))),
        "annotations": _reserved(
            "annotations", readers.annotation_map("annotations", inputs.get("annotations"))
        ),
        "istio_injection": readers.boolean("istio_injection", inputs.get("istio_injection")),
        "pod_template_patch": {
            key: readers.mapping(f"pod_template_patch.{key}", part)
            for key, part in readers.known_fields(
                "pod_template_patch", inputs.get("pod_template_patch"), ("metadata", "spec")
            ).items()
        },
    }


def _reserved(name: str, read: dict[str, str]) -> dict[str, str]:
    for key in read:
        if key.startswith((f"{constants.PREFIX}/", "training.kubeflow.org/")):
            raise InputError(f"{name} may not have {key!r}: the launcher and the operator set it.")
    return read


def _policies(inputs: dict[str, Any], num_nodes: int) -> dict[str, Any]:
    def seconds(name: str, default: int = 0) -> int:
        return readers.integer(name, inputs.get(name), default=default)

    return {
        "backoff_limit": readers.integer(
            "backoff_limit",
            None if inputs.get("backoff_limit") == -1 else inputs.get("backoff_limit"),
            default=RESTARTS_BEFORE_FAILURE * num_nodes,
        ),
        "ttl_seconds": _ttl(inputs.get("ttl_seconds")),
        "clean_pod_policy": CLEAN_POD_POLICIES[
            readers.choice(
                "clean_pod_policy", inputs.get("clean_pod_policy"), tuple(CLEAN_POD_POLICIES)
            )
        ],
        "active_deadline": seconds("active_deadline"),
        "restart_policy": readers.choice(
            "restart_policy", inputs.get("restart_policy"), RESTART_POLICIES
        ),
        "queue_timeout": seconds("queue_timeout"),
        "start_timeout": seconds("start_timeout", START_TIMEOUT_DEFAULT),
        "timeout": seconds("timeout"),
        "cleanup": readers.choice("cleanup", inputs.get("cleanup"), CLEANUPS),
    }


def _ttl(value: Any) -> int:
    ttl = readers.integer("ttl_seconds", value, default=TTL_DEFAULT, minimum=-1)
    if 0 <= ttl < TTL_MINIMUM:
        raise InputError(
            f"ttl_seconds is {ttl}; a finished job must be kept at least {TTL_MINIMUM} seconds, or "
            "it may be gone before the launcher has seen how it ended. -1 keeps it for ever."
        )
    return ttl
