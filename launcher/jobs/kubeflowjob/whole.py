"""A whole manifest of a job, as somebody wrote it: its checks, and what the launcher adds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import environment, k8s, readers
from kfp_pytorch.launcher.jobs.kubeflowjob.frameworks import FRAMEWORKS, Framework
from kfp_pytorch.launcher.jobs.pods import input_readers, template
from kfp_pytorch.launcher.jobs.pods.inputs import MAX_NODES

_METADATA = ("name", "generateName", "namespace", "labels", "annotations")
_RESTART_POLICIES = ("OnFailure", "Never", "Always", "ExitCode")


def check_roles(name: str, counts: Mapping[str, int], kind: str) -> None:
    """Refuse roles that the operator would refuse, or wait for."""
    for problem in _role_problems(counts, FRAMEWORKS[kind]):
        raise InputError(f"{name}: a {kind} {problem}.")


def _role_problems(counts: Mapping[str, int], framework: Framework) -> Iterator[str]:
    for role in counts:
        if role not in framework.roles.names:
            yield f"has no role {role!r}; it may have {', '.join(framework.roles.names)}"
    if not any(role not in framework.without_accelerators for role in counts):
        yield "needs pods that train"
    for role in framework.required:
        if role not in counts:
            yield f"needs the role {role!r}"
    for role in framework.single:
        if counts.get(role, 1) != 1:
            yield f"has one pod of the role {role!r}, not {counts[role]}"
    both = [role for role in framework.one_of if role in counts]
    if len(both) > 1:
        yield f"has one of the roles {' and '.join(map(repr, both))}, not both"


def checked(manifest: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Check a manifest; return it with each number of replicas in it, and without its status.

    Raises InputError: if the API server or the operator would refuse it, or never run it.
    """
    framework = FRAMEWORKS[kind]
    fields = ("apiVersion", "kind", "metadata", "spec", "status")
    job: dict[str, Any] = _without_nulls(readers.known_fields("manifest", manifest, fields))
    job.pop("status", None)
    if job.get("apiVersion") != framework.resource.api_version:
        raise InputError(
            f"manifest.apiVersion is {job.get('apiVersion')!r}; it must be "
            f"{framework.resource.api_version!r}, as the Training Operator has it."
        )
    metadata = readers.known_fields("manifest.metadata", job.get("metadata"), _METADATA)
    metadata |= _texts("manifest.metadata", metadata)
    spec = readers.mapping("manifest.spec", job.get("spec"))
    where = f"manifest.spec.{framework.roles.field}"
    specs = readers.mapping(where, spec.get(framework.roles.field))
    if not specs:
        raise InputError(f"{where} is empty; it says which pods the {kind} has.")
    for role in specs:
        specs[role] = _replica(f"{where}.{role}", specs[role], framework)
    check_roles(where, {role: of["replicas"] for role, of in specs.items()}, kind)
    policy = readers.mapping("manifest.spec.runPolicy", spec.get("runPolicy"))
    if clean := spec.get("cleanPodPolicy"):
        policy.setdefault("cleanPodPolicy", clean)
    _check_policy("manifest.spec.runPolicy", policy, sum(of["replicas"] for of in specs.values()))
    if "slotsPerWorker" in spec:
        slots = "manifest.spec.slotsPerWorker"
        spec["slotsPerWorker"] = readers.integer(slots, spec["slotsPerWorker"], minimum=1)
    return job | {
        "metadata": metadata,
        "spec": {**spec, framework.roles.field: specs, "runPolicy": policy},
    }


def _replica(where: str, value: Any, framework: Framework) -> dict[str, Any]:
    fields = ("replicas", "restartPolicy", "template")
    replica = readers.known_fields(where, value, fields)
    # The operator's default of a worker of MPI is no pod at all.
    if framework.processes == 0 and "replicas" not in replica and where.endswith(".Worker"):
        raise InputError(f"{where}.replicas is not set; give the number of workers.")
    count = readers.integer(
        f"{where}.replicas", replica.get("replicas", 1), minimum=1, maximum=MAX_NODES
    )
    policy = replica.get("restartPolicy")
    if policy is not None:
        readers.choice(f"{where}.restartPolicy", policy, _RESTART_POLICIES)
    if policy == "ExitCode" and framework.resource.kind == "MPIJob":
        raise InputError(
            f"{where}.restartPolicy is 'ExitCode', and the operator makes no pod of an MPIJob anew."
        )
    pods = readers.known_fields(f"{where}.template", replica.get("template"), ("metadata", "spec"))
    spec = readers.mapping(f"{where}.template.spec", pods.get("spec"))
    _check_containers(f"{where}.template.spec", spec, framework)
    metadata = readers.mapping(f"{where}.template.metadata", pods.get("metadata"))
    metadata |= _texts(f"{where}.template.metadata", metadata)
    return replica | {"replicas": count, "template": {"metadata": metadata, "spec": spec}}


def _check_containers(where: str, spec: dict[str, Any], framework: Framework) -> None:
    for field in ("containers", "initContainers", "volumes"):
        for i, part in enumerate(_objects(f"{where}.{field}", spec.get(field, []))):
            part["name"] = k8s.dns_label(f"{where}.{field}[{i}].name", part.get("name") or "-")
            _check_container(f"{where}.{field}[{i}]", part)
    names = [container["name"] for container in spec.get("containers", [])]
    if framework.container not in names:
        raise InputError(
            f"{where}.containers has {', '.join(names) or 'none'}; the container that trains must "
            f"be called {framework.container!r} in a {framework.resource.kind}."
        )
    trains = spec["containers"][names.index(framework.container)]
    for variable in trains.get("env", []):
        environment.check_not_of_launcher(variable["name"], f"{where}'s container")
    template.check_pod(spec, framework.container)


def _check_container(where: str, container: dict[str, Any]) -> None:
    """Refuse lists that are none; write numbers among the variables' values as texts."""
    for field in ("env", "envFrom", "ports", "volumeMounts"):
        _objects(f"{where}.{field}", container.get(field, []))
    for field in ("command", "args"):
        if not isinstance(container.get(field, []), list):
            # What it is may hold secrets.
            raise InputError(f"{where}.{field} must be a list of strings.")
    readers.mapping(f"{where}.resources", container.get("resources"))
    for variable in container.get("env", []):
        environment.check_name(str(variable.get("name", "")), f"{where}.env")
        if "value" in variable:
            name = f"{where}'s variable {variable['name']!r}"
            variable["value"] = template.variable_text(name, variable["value"])


def _check_policy(where: str, policy: dict[str, Any], pods: int) -> None:
    if "cleanPodPolicy" in policy:
        input_readers.clean_pod_policy(f"{where}.cleanPodPolicy", policy["cleanPodPolicy"])
    for field in ("activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished"):
        if field in policy:
            policy[field] = readers.integer(f"{where}.{field}", policy[field])
    scheduling = readers.mapping(f"{where}.schedulingPolicy", policy.get("schedulingPolicy"))
    least = readers.integer(
        f"{where}.schedulingPolicy.minAvailable", scheduling.get("minAvailable", 1)
    )
    if least > pods:
        raise InputError(
            f"{where}.schedulingPolicy.minAvailable is {least} and the job has {pods} pods; the "
            "gang would never be complete."
        )
    if "ttlSecondsAfterFinished" in policy:
        input_readers.ttl(f"{where}.ttlSecondsAfterFinished", policy["ttlSecondsAfterFinished"])


def _objects(where: str, value: Any) -> list[dict[str, Any]]:
    """Return a list of objects; of another value only the type is said: it may hold secrets."""
    if not isinstance(value, list):
        raise InputError(f"{where} is a {type(value).__name__}; it must be a list.")
    for i, item in enumerate(value):
        if not isinstance(item, dict):
            raise InputError(f"{where}[{i}] is a {type(item).__name__}; it must be an object.")
    return value


def _texts(where: str, metadata: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    read_as = {"labels": k8s.label_map, "annotations": k8s.annotation_map}
    return {
        part: read(f"{where}.{part}", metadata[part])
        for part, read in read_as.items()
        if part in metadata
    }


def _without_nulls(value: Any) -> Any:
    """Copy a manifest without the fields that are null, which are unset for the API server."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def image(job: Mapping[str, Any], framework: Framework) -> str:
    """Return the image that the first role's pods train with."""
    specs = framework.roles.specs(dict(job))
    containers = next(iter(specs.values()))["template"]["spec"]["containers"]
    return next(str(c["image"]) for c in containers if c["name"] == framework.container)
