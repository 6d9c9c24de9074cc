"""A whole manifest of a job, as somebody wrote it: its checks, and what the launcher adds."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import environment, k8s, readers
from kfp_pytorch.launcher.jobs.kubeflowjob.frameworks import FRAMEWORKS, Framework
from kfp_pytorch.launcher.jobs.pods import template
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
    job: dict[str, Any] = copy.deepcopy(readers.known_fields("manifest", manifest, fields))
    job.pop("status", None)
    if job.get("apiVersion") != framework.resource.api_version:
        raise InputError(
            f"manifest.apiVersion is {job.get('apiVersion')!r}; it must be "
            f"{framework.resource.api_version!r}, as the Training Operator has it."
        )
    metadata = readers.known_fields("manifest.metadata", job.get("metadata"), _METADATA)
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
    return replica | {"replicas": count, "template": {"metadata": metadata, "spec": spec}}


def _check_containers(where: str, spec: dict[str, Any], framework: Framework) -> None:
    for field in ("containers", "initContainers", "volumes"):
        for i, item in enumerate(readers.sequence(f"{where}.{field}", spec.get(field))):
            part = readers.mapping(f"{where}.{field}[{i}]", item)
            k8s.dns_label(f"{where}.{field}[{i}].name", part.get("name") or "-")
    names = [container["name"] for container in spec.get("containers") or []]
    if framework.container not in names:
        raise InputError(
            f"{where}.containers has {', '.join(names) or 'none'}; the container that trains must "
            f"be called {framework.container!r} in a {framework.resource.kind}."
        )
    trains = spec["containers"][names.index(framework.container)]
    for variable in trains.get("env") or []:
        environment.check_not_of_launcher(str(variable.get("name")), f"{where}'s container")
    template.check_pod(spec, framework.container)


def image(job: Mapping[str, Any], framework: Framework) -> str:
    """Return the image that the first role's pods train with."""
    specs = framework.roles.specs(dict(job))
    containers = next(iter(specs.values()))["template"]["spec"]["containers"]
    return next(str(c["image"]) for c in containers if c["name"] == framework.container)
