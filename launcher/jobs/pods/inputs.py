"""The inputs of every job of pods: their declaration and their checks.

`template.py` makes the pods' template of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import (
    datasets,
    environment,
    k8s,
    placement,
    readers,
    source,
    storage,
    task_config,
)
from kfp_pytorch.launcher.inputs.datasets import DataSet
from kfp_pytorch.launcher.inputs.declaration import declare, parse
from kfp_pytorch.launcher.inputs.scheduling import merging, place, scheduler
from kfp_pytorch.launcher.inputs.source import Source
from kfp_pytorch.launcher.inputs.storage import Location
from kfp_pytorch.launcher.jobs.kind import JobInputs
from kfp_pytorch.launcher.jobs.pods import input_readers

MAX_NODES = 10_000

T = TypeVar("T", bound="PodInputs")


@dataclass(frozen=True, kw_only=True)
class PodInputs(JobInputs):
    """The checked inputs that every job of pods has, and what follows from several of them."""

    # Inputs that came later: left out of `spec` while unset, so that it stays as it was.
    later: ClassVar[tuple[str, ...]] = ("datasets", "scheduling", "placement", "source")
    # The schedulers that jobs of the kind can have, and what to do about another.
    schedulers: ClassVar[tuple[str, ...]] = scheduler.SCHEDULERS
    scheduler_advice: ClassVar[str] = ""

    image: str = declare(input_readers.training_image, None)
    task_config: task_config.TaskSettings = declare(
        task_config.read, None, type_name="dsl.TaskConfig"
    )
    name: str = declare(input_readers.job_name, "job")
    namespace: str = declare(k8s.dns_label, "")
    command: tuple[str, ...] = declare(input_readers.command, [])
    args: tuple[str, ...] = declare(readers.strings, [])
    hyperparameters: dict[str, str] = declare(input_readers.hyperparameters, {})
    env: tuple[dict[str, Any], ...] = declare(environment.variables, {})
    num_nodes: int = declare(partial(readers.integer, minimum=1, maximum=MAX_NODES), 1)
    nproc_per_node: str = declare(input_readers.processes, "")
    cpu: str = declare(k8s.cpu, "")
    memory: str = declare(k8s.memory, "")
    gpus_per_node: int = declare(partial(readers.integer, maximum=4096), 0)
    gpu_resource: str = declare(placement.gpu_resource, placement.GPU_RESOURCE)
    shm_size: str = declare(input_readers.shm_size, "")
    output_uri: Location = declare(storage.location, constants.DEFAULT_OUTPUT_URI)
    key: str = declare(storage.relative, "")
    output_secret: str = declare(k8s.dns_subdomain, "")
    resume_from: Location | None = declare(storage.optional_location, "")
    service_account: str = declare(k8s.dns_subdomain, "")
    image_pull_secrets: tuple[str, ...] = declare(input_readers.pull_secrets, [])
    image_pull_policy: str = declare(readers.one_of("", "IfNotPresent", "Always", "Never"), "")
    run_as_root: bool = declare(readers.boolean, False)
    run_as_user: int = declare(readers.integer, 1000)
    security_context: dict[str, Any] = declare(placement.security_context, {})
    node_selector: dict[str, str] = declare(k8s.label_map, {})
    tolerations: tuple[dict[str, Any], ...] = declare(placement.tolerations, [])
    affinity: dict[str, Any] = declare(placement.affinity, {})
    labels: dict[str, str] = declare(input_readers.job_labels, {})
    annotations: dict[str, str] = declare(input_readers.job_annotations, {})
    istio_injection: bool = declare(readers.boolean, False)
    retry_same_error: bool = declare(readers.boolean, False)
    active_deadline: int = declare(readers.integer, 0)
    queue_timeout: int = declare(readers.integer, 0)
    start_timeout: int = declare(readers.integer, 1_800)
    timeout: int = declare(readers.integer, 0)
    cleanup: str = declare(readers.one_of("on_failure", "always", "never"), "on_failure")
    pod_template_patch: dict[str, Any] = declare(input_readers.template_patch, {})
    dataset_names: tuple[str, ...] = declare(datasets.names, [])
    scheduling: scheduler.Scheduling = declare(scheduler.read, {})
    placement: place.Placement = declare(place.read, {})
    source: Source = declare(source.read, {})
    datasets: Mapping[str, DataSet] = field(default_factory=dict)

    def folder(self, job_name: str) -> Location:
        """Return the job's own folder, `<output_uri>/<key>/<job name>`."""
        return self.output_uri.under(self.key, job_name)

    @property
    def resources(self) -> dict[str, dict[str, str]]:
        """The container's `resources`."""
        found = placement.resources(
            self.task_config.resources,
            {"cpu": self.cpu, "memory": self.memory},
            self.gpu_resource,
            self.gpus_per_node,
        )
        return merging.with_rdma(self.placement, found)

    @property
    def gpus(self) -> int:
        """Accelerators of each pod, of any kind."""
        return placement.accelerators(merging.without_rdma(self.placement, self.resources))

    @property
    def places(self) -> dict[str, Location]:
        """Where the pods read and write, by what says so."""
        claims = {f"dataset {name!r}": of.claim for name, of in self.datasets.items() if of.claim}
        if self.source.claim:
            claims["source"] = self.source.claim
        return super().places | claims

    def spec(self) -> dict[str, Any]:
        """Return all that the job is made of, in JSON form.

        Its hash is a label of the job, so its keys stay as they are from version to version.
        """
        merged = ["cpu", "memory", "gpus_per_node", "gpu_resource", "hyperparameters"]
        merged += ["dataset_names", *(name for name in self.later if not getattr(self, name))]
        spec = asdict(self)
        for name in (*merged, "retry_same_error"):
            del spec[name]
        task = spec.pop("task_config")
        return spec | {
            "output": spec.pop("output_uri"),
            "resources": self.resources,
            "gpus": self.gpus,
            "volumes": task["volumes"],
            "volume_mounts": task["volume_mounts"],
        }


def parse_pod_inputs(declaration: type[T], component: str, inputs: Mapping[str, Any]) -> T:
    """Check the inputs of a component, as KFP passes them.

    The URIs of data sets are put into the command line, the hyperparameters come to the end of
    `args`, and the task's own settings are merged where no input overrides them.
    """
    values = dict(inputs)
    artifacts = {slot: values.pop(slot, None) for slot in datasets.SLOTS}
    given = parse(declaration, component, values)
    given = _with_datasets(given, datasets.by_name(artifacts, given.dataset_names))
    given = _with_placement(given, component)
    task = given.task_config
    merged = replace(
        given,
        args=_with_hyperparameters(given.args, given.hyperparameters),
        env=environment.merged(environment.merged(given.env, task.env), _of_rdma(given)),
        nproc_per_node=given.nproc_per_node or str(max(1, given.gpus)),
        node_selector=task.node_selector | given.node_selector,
        tolerations=placement.merged_tolerations(given.tolerations, task.tolerations),
        affinity=task.affinity | given.affinity,
    )
    own = [environment.variable(*each) for each in datasets.variables(merged.datasets).items()]
    environment.check_size(merged.command, merged.args, [*merged.env, *own])
    return merged


def check_processes(inputs: PodInputs) -> None:
    """Refuse more processes of torchrun in a pod than it has GPUs, or as many as CPUs.

    Raises InputError.
    """
    asked, resources = inputs.nproc_per_node, inputs.resources
    amounts = {**resources.get("requests", {}), **resources.get("limits", {})}
    gpus = int(amounts.get(inputs.gpu_resource, "0"))
    shared = asked == "cpu" or (asked.isdecimal() and int(asked) > max(gpus, inputs.gpus))
    if gpus and shared and not patches_resources(inputs):
        raise InputError(
            f"nproc_per_node is {asked!r}, and a pod has {gpus} of {inputs.gpu_resource}; two "
            "processes of a job cannot share a GPU, which NCCL refuses. Leave nproc_per_node out "
            "for one process for each GPU, or ask for more GPUs. A program that starts processes "
            "itself is one process."
        )


def patches_resources(inputs: PodInputs) -> bool:
    """Whether a patch changes what containers are given."""
    return any(container.get("resources") for container in patched_containers(inputs))


def patched_containers(inputs: PodInputs) -> list[dict[str, Any]]:
    """Return a patch's containers, as far as they are objects."""
    found = (inputs.pod_template_patch.get("spec") or {}).get("containers") or []
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _with_placement(inputs: T, component: str) -> T:
    """Put what `placement` says of devices and taints into the inputs of the same meaning."""
    asked, wanted = inputs.placement, inputs.scheduling.scheduler
    if wanted not in ("", *inputs.schedulers):
        can = ", ".join(inputs.schedulers) or "none"
        raise InputError(
            f"scheduling.scheduler is {wanted!r}; {component} can have {can}. "
            f"{inputs.scheduler_advice}".strip()
        )
    gpus, resource = merging.gpus(asked, inputs.gpus_per_node, inputs.gpu_resource)
    placed = replace(
        inputs,
        gpus_per_node=gpus,
        gpu_resource=resource,
        tolerations=placement.merged_tolerations(inputs.tolerations, asked.tolerations),
    )
    merging.check(
        asked,
        placed.resources,
        gpus=placed.gpus,
        gpu_resource=resource,
        processes=inputs.nproc_per_node,
        shm_size=inputs.shm_size,
    )
    return placed


def _of_rdma(inputs: PodInputs) -> tuple[dict[str, Any], ...]:
    found = inputs.placement.rdma.environment if inputs.placement.rdma else {}
    return tuple(environment.variable(name, value) for name, value in found.items())


def _with_datasets(inputs: T, found: Mapping[str, DataSet]) -> T:
    def words(name: str, given: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(datasets.filled(f"{name}[{i}]", word, found) for i, word in enumerate(given))

    return replace(
        inputs,
        datasets=found,
        command=words("command", inputs.command),
        args=words("args", inputs.args),
        hyperparameters={
            key: datasets.filled(f"hyperparameters[{key!r}]", value, found)
            for key, value in inputs.hyperparameters.items()
        },
    )


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
