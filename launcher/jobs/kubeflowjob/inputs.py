"""The inputs of `kubeflow_job`: their declaration and their checks.

`manifest.py` makes a job of them, or `whole.py` where they have a whole manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import k8s, readers
from kfp_pytorch.launcher.inputs.declaration import declare, parse
from kfp_pytorch.launcher.inputs.scheduling.scheduler import KAI
from kfp_pytorch.launcher.jobs.kubeflowjob import whole
from kfp_pytorch.launcher.jobs.kubeflowjob.frameworks import ELSEWHERE, FRAMEWORKS, Framework
from kfp_pytorch.launcher.jobs.pods import input_readers
from kfp_pytorch.launcher.jobs.pods.inputs import MAX_NODES, parse_pod_inputs
from kfp_pytorch.launcher.jobs.trainingoperator.inputs import OperatorInputs, with_backoff_limit

_COUNT = partial(readers.integer, minimum=1, maximum=MAX_NODES)
# What a role may have of its own.
_OF_A_ROLE: dict[str, Callable[[str, Any], Any]] = {
    "command": input_readers.command,
    "args": readers.strings,
    "cpu": k8s.cpu,
    "memory": k8s.memory,
    "gpus_per_node": partial(readers.integer, maximum=4096),
}
# The inputs that a whole manifest leaves nothing to say for.
_OF_THE_MANIFEST = (
    "task_config",
    *("image", "command", "args", "hyperparameters", "env", "num_nodes", "replicas", "cpu"),
    *("memory", "gpus_per_node", "gpu_resource", "shm_size", "output_secret", "service_account"),
    *("image_pull_secrets", "image_pull_policy", "run_as_root", "run_as_user", "security_context"),
    *("node_selector", "tolerations", "affinity", "istio_injection", "restart_policy"),
    *("pod_template_patch", "scheduling", "placement", "success_policy"),
)


@dataclass(frozen=True)
class Role:
    """The pods of a role: how many, and the inputs that differ from the job's."""

    count: int
    changes: Mapping[str, Any] = field(default_factory=dict)


def kind(name: str, value: Any) -> str:
    """Read the kind of a job; unset gives ''."""
    word = readers.text(name, value)
    if word in ELSEWHERE:
        raise InputError(f"{name} is {word!r}; the component {ELSEWHERE[word]} is for that kind.")
    if word and word not in FRAMEWORKS:
        raise InputError(f"{name} is {word!r}; it must be one of {', '.join(FRAMEWORKS)}.")
    return word


def roles(name: str, value: Any) -> dict[str, Role]:
    """Read how many pods each role has, a number or an object each."""
    return {
        role: _role(f"{name}[{role!r}]", given)
        for role, given in readers.mapping(name, value).items()
    }


def _role(name: str, value: Any) -> Role:
    if readers.is_unset(value):
        raise InputError(f"{name} is {value!r}; give the number of its pods, or leave it out.")
    if not isinstance(value, Mapping):
        return Role(_COUNT(name, value))
    given = readers.known_fields(name, value, ("replicas", *_OF_A_ROLE))
    count = _COUNT(f"{name}.replicas", given.pop("replicas", None)) or 1
    return Role(count, {key: _OF_A_ROLE[key](f"{name}.{key}", of) for key, of in given.items()})


@dataclass(frozen=True, kw_only=True)
class KubeflowJobInputs(OperatorInputs):
    """The checked inputs of `kubeflow_job`."""

    image: str = declare(k8s.image, "")
    name: str = declare(input_readers.job_name, "kubeflow-job")
    kind: str = declare(kind, "")
    replicas: dict[str, Role] = declare(roles, {})
    manifest: dict[str, Any] = declare(readers.mapping, {})
    success_policy: str = declare(readers.one_of("", "AllWorkers"), "")

    @property
    def framework(self) -> Framework:
        """What tells the job's kind apart."""
        return FRAMEWORKS[self.kind]

    @property
    def counts(self) -> dict[str, int]:
        """How many pods each role has."""
        return {name: role.count for name, role in self.replicas.items()}

    @property
    def a_rank_reports(self) -> bool:
        """Whether the process whose message is the job's trains; the launcher of MPI does not."""
        return self.kind != "MPIJob"


def parse_inputs(**inputs: Any) -> KubeflowJobInputs:
    """Check the inputs of `kubeflow_job`, as KFP passes them."""
    given = parse_pod_inputs(KubeflowJobInputs, "kubeflow_job", inputs)
    given = replace(given, kind=kind_of(given.kind, given.manifest))
    if given.manifest:
        return _of_manifest(given)
    if not given.image:
        raise InputError("image is not set; give the training image, or a whole manifest.")
    _check_kind(given, inputs)
    replicas = given.replicas or {
        role: Role(count) for role, count in given.framework.replicas(given.num_nodes).items()
    }
    whole.check_roles("replicas", {name: role.count for name, role in replicas.items()}, given.kind)
    of_kind = str(given.framework.processes or "auto")
    return _counted(
        replace(
            given,
            replicas={name: role for name, role in replicas.items() if role.count},
            nproc_per_node=given.nproc_per_node if given.kind == "MPIJob" else of_kind,
        )
    )


def kind_of(given: str, manifest: Mapping[str, Any]) -> str:
    """Return the kind of the job, which the input and the manifest may both name."""
    of_manifest = kind("manifest.kind", manifest.get("kind"))
    if not (given or of_manifest):
        raise InputError(f"kind is not set; give one of {', '.join(FRAMEWORKS)}.")
    if given and manifest and given != of_manifest:
        raise InputError(f"kind is {given!r}, and the manifest is of kind {of_manifest!r}.")
    return given or of_manifest


def _counted(inputs: KubeflowJobInputs) -> KubeflowJobInputs:
    helpers = inputs.framework.without_accelerators if inputs.kind == "MPIJob" else ()
    nodes = sum(count for role, count in inputs.counts.items() if role not in helpers)
    return replace(with_backoff_limit(inputs, sum(inputs.counts.values())), num_nodes=max(1, nodes))


def _of_manifest(given: KubeflowJobInputs) -> KubeflowJobInputs:
    defaults = parse(KubeflowJobInputs, "kubeflow_job", {})
    for name in _OF_THE_MANIFEST:
        if getattr(given, name) != getattr(defaults, name):
            what = "The task has settings of its own" if name == "task_config" else f"{name} is set"
            raise InputError(
                f"{what}, and so is manifest, which says all of the pods: write it there."
            )
    job = whole.checked(given.manifest, given.kind)
    namespace = readers.text("manifest.metadata.namespace", job["metadata"].get("namespace"))
    if given.namespace and namespace and given.namespace != namespace:
        raise InputError(
            f"namespace is {given.namespace!r}, and that of the manifest {namespace!r}."
        )
    specs = job["spec"][given.framework.roles.field]
    return _counted(
        replace(
            given,
            manifest=job,
            namespace=given.namespace or k8s.dns_label("manifest.metadata.namespace", namespace),
            replicas={role: Role(spec.get("replicas", 1)) for role, spec in specs.items()},
            image=whole.image(job, given.framework),
            nproc_per_node=str(
                job["spec"].get("slotsPerWorker") or given.framework.processes or "auto"
            ),
        )
    )


def _check_kind(given: KubeflowJobInputs, inputs: Mapping[str, Any]) -> None:
    """Refuse what the kind cannot have."""
    for problem in _problems(given, inputs):
        raise InputError(problem)


def _problems(given: KubeflowJobInputs, inputs: Mapping[str, Any]) -> Iterator[str]:
    if given.replicas and given.num_nodes != 1:
        yield "num_nodes and replicas are both set; give one of them."
    if given.kind != "MPIJob" and not readers.is_unset(inputs.get("nproc_per_node")):
        yield (
            f"nproc_per_node is {given.nproc_per_node!r}; of these kinds MPIJob alone has it, as "
            f"the slots of a worker. The program of a {given.kind} says how many processes it "
            "starts."
        )
    if given.kind == "MPIJob" and not given.nproc_per_node.isdecimal():
        yield f"nproc_per_node is {given.nproc_per_node!r}; the slots of a worker are a number."
    if given.success_policy and given.kind != "TFJob":
        yield (
            f"success_policy is {given.success_policy!r}; a TFJob alone has it. The operator says "
            f"when a {given.kind} has succeeded."
        )
    if given.kind == "PaddleJob" and given.scheduling.scheduler == KAI and given.scheduling.gang:
        yield (
            "scheduling asks KAI for a gang, and KAI starts the pods of a PaddleJob one by one; "
            "set gang to false, or take another scheduler."
        )
    if given.kind == "MPIJob" and given.restart_policy == "ExitCode":
        yield "restart_policy is 'ExitCode', and the operator makes no pod of an MPIJob anew."
    for role, of in given.replicas.items():
        if of.changes.get("gpus_per_node") and given.placement.mig:
            yield (
                f"replicas[{role!r}] has gpus_per_node {of.changes['gpus_per_node']}, and "
                f"placement the MIG profile {given.placement.mig!r}; a pod has whole GPUs or one "
                "MIG device. Drop one."
            )
    for variable in given.env:
        if variable["name"] in given.framework.variables:
            yield f"env may not set {variable['name']}: the operator does."
