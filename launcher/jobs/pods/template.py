"""From checked inputs to the template of the pods."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import (
    datasets,
    environment,
    k8s,
    pod_rules,
    readers,
    strategic_merge,
)
from kfp_pytorch.launcher.inputs.scheduling import merging
from kfp_pytorch.launcher.inputs.scheduling.demands import Demands, Pods, merged
from kfp_pytorch.launcher.inputs.storage import Location
from kfp_pytorch.launcher.jobs.pods import scheduled, source_files
from kfp_pytorch.launcher.jobs.pods.inputs import PodInputs

OUTPUT_VOLUME = "kfp-pytorch-output"
RESUME_VOLUME = "kfp-pytorch-resume"
DATASET_VOLUME = "kfp-pytorch-dataset"
SOURCE_VOLUME = "kfp-pytorch-source"
CREDENTIALS_VOLUME = "kfp-pytorch-credentials"
SHM_VOLUME = "kfp-pytorch-shm"
SHM_MOUNT = "/dev/shm"  # noqa: S108 - the kernel's shared memory, not a temporary file
GCS_CREDENTIALS_ENV = "GOOGLE_APPLICATION_CREDENTIALS"
ISTIO_INJECT = "sidecar.istio.io/inject"


def pod_template(
    inputs: PodInputs, pods: Pods, container: str, demanded: Demands
) -> dict[str, Any]:
    """Build the template that every replica shares, the user's patch included.

    `container`: the name of the container that trains. `demanded`: what scheduling and placement
    demand, as `scheduled.demands_of` returns it. Raises InputError: if the patch leaves a pod that
    no cluster would run.
    """
    mesh = {} if inputs.istio_injection else {ISTIO_INJECT: "false"}
    labels = merged("labels", inputs.labels, demanded.pod_labels)
    annotations = merged("annotations", inputs.annotations, demanded.pod_annotations)
    template = {
        "metadata": {
            "labels": {**mesh, **labels, **pods.labels},
            "annotations": {**mesh, **annotations},
        },
        "spec": scheduled.with_demands(_pod_spec(inputs, pods.job_name, container), demanded),
    }
    template = strategic_merge.merge(template, inputs.pod_template_patch, "pod_template_patch")
    _check_lists(template["spec"])
    _check_patch(inputs.pod_template_patch.get("spec") or {}, container)
    _render_texts(template)
    _add_shared_memory(template["spec"], inputs, container)
    check_pod(template["spec"], container)
    return template


def _pod_spec(inputs: PodInputs, job_name: str, container: str) -> dict[str, Any]:
    volumes, mounts = _volumes(inputs, job_name)
    spec: dict[str, Any] = {
        "containers": [_container(inputs, job_name, container, mounts)],
        "securityContext": _pod_security(inputs),
        "volumes": volumes,
        "serviceAccountName": inputs.service_account,
        "imagePullSecrets": [{"name": name} for name in inputs.image_pull_secrets],
        "nodeSelector": dict(inputs.node_selector),
        "tolerations": [dict(item) for item in inputs.tolerations],
        "affinity": merging.node_affinity(inputs.placement, inputs.affinity),
    }
    return {key: value for key, value in spec.items() if value}


def _container(
    inputs: PodInputs, job_name: str, name: str, mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": name,
        "image": inputs.image,
        "imagePullPolicy": inputs.image_pull_policy,
        "command": [environment.escaped(item) for item in inputs.command],
        "args": [environment.escaped(item) for item in inputs.args],
        "env": source_files.with_python_path(inputs.source, copy.deepcopy(inputs.env))
        + _contract(inputs, job_name),
        "resources": copy.deepcopy(inputs.resources),
        "securityContext": _container_security(inputs),
        "terminationMessagePath": constants.TERMINATION_LOG_PATH,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    if inputs.output_secret:
        container["envFrom"] = [{"secretRef": {"name": inputs.output_secret}}]
    return {key: value for key, value in container.items() if value}


def add_contract(spec: dict[str, Any], inputs: PodInputs, job_name: str, container: str) -> None:
    """Add the job's folder and what else the container that trains is told to a pod's spec.

    Raises InputError: if that and what the spec has exclude each other.
    """
    volumes, mounts = _volumes(inputs, job_name)
    trains = _named(spec["containers"], container)
    if trains is None:
        raise InputError(f"No container of the pod is called {container!r}.")
    own = source_files.with_python_path(inputs.source, trains.get("env") or [])
    trains["env"] = [*own, *_contract(inputs, job_name)]
    trains["volumeMounts"] = [*(trains.get("volumeMounts") or []), *mounts]
    trains.setdefault("terminationMessagePath", constants.TERMINATION_LOG_PATH)
    trains.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    spec["volumes"] = [*(spec.get("volumes") or []), *volumes]
    check_pod(spec, container)


def _contract(inputs: PodInputs, job_name: str) -> list[dict[str, str]]:
    folder = inputs.folder(job_name).path_in_container(constants.OUTPUT_MOUNT)
    values = {
        constants.OUTPUT_ENV: folder,
        constants.TERMINATION_LOG_ENV: constants.TERMINATION_LOG_PATH,
    }
    values |= datasets.variables(inputs.datasets)
    if inputs.resume_from:
        resumed = inputs.resume_from.path_in_container(constants.RESUME_MOUNT)
        values[constants.RESUME_FROM_ENV] = resumed
    if _reads_gcs_key(inputs) and not _named([*inputs.env], GCS_CREDENTIALS_ENV):
        values[GCS_CREDENTIALS_ENV] = constants.GCS_CREDENTIALS_PATH
    return [environment.variable(name, value) for name, value in values.items()]


def _reads_gcs_key(inputs: PodInputs) -> bool:
    uris = [place.uri for place in inputs.places.values()]
    uris += [dataset.uri for dataset in inputs.datasets.values()]
    return bool(inputs.output_secret) and any(uri.startswith("gs://") for uri in uris)


def _volumes(inputs: PodInputs, job_name: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    volumes = [copy.deepcopy(volume) for volume in _distinct(inputs.task_config.volumes)]
    mounts = [copy.deepcopy(mount) for mount in inputs.task_config.volume_mounts]
    claims: dict[str, str] = {}

    def mount(location: Location | None, volume: str, path: str, *, read_only: bool) -> None:
        if location is None or not location.on_claim:
            return
        if location.host not in claims:
            claims[location.host] = volume
            source = {"claimName": location.host}
            volumes.append({"name": volume, "persistentVolumeClaim": source})
        entry: dict[str, Any] = {"name": claims[location.host], "mountPath": path}
        mounts.append(entry | ({"readOnly": True} if read_only else {}))

    mount(inputs.output_uri, OUTPUT_VOLUME, constants.OUTPUT_MOUNT, read_only=False)
    mount(inputs.resume_from, RESUME_VOLUME, constants.RESUME_MOUNT, read_only=True)
    for i, data in enumerate(inputs.datasets.values()):
        mount(data.claim, f"{DATASET_VOLUME}-{i}", data.mount, read_only=True)
    source = inputs.source
    mount(source.claim, SOURCE_VOLUME, constants.SOURCE_MOUNT, read_only=True)
    if source.claim and source.claim.path:
        mounts[-1]["subPath"] = source.claim.path
    if source.files:
        volumes.append({"name": SOURCE_VOLUME, **source_files.volume_source(source, job_name)})
        entry = {"name": SOURCE_VOLUME, "mountPath": constants.SOURCE_MOUNT, "readOnly": True}
        mounts.append(entry)
    if _reads_gcs_key(inputs):
        secret = {"secretName": inputs.output_secret}
        volumes.append({"name": CREDENTIALS_VOLUME, "secret": secret})
        path = constants.CREDENTIALS_MOUNT
        mounts.append({"name": CREDENTIALS_VOLUME, "mountPath": path, "readOnly": True})
    return volumes, mounts


def _distinct(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop repeats: KFP lists a claim once for every path that it is mounted at."""
    distinct: list[dict[str, Any]] = []
    for item in items:
        if item not in distinct:
            distinct.append(item)
    return distinct


def _pod_security(inputs: PodInputs) -> dict[str, Any]:
    """Return the pod's part of the restricted Pod Security Standard.

    The user id stands here, not at the container, because the operator adds an init container
    whose image would else run as root. The group makes a claim writable for that user.
    """
    context: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    if not inputs.run_as_root and inputs.run_as_user:
        context |= {
            "runAsNonRoot": True,
            "runAsUser": inputs.run_as_user,
            "fsGroup": inputs.run_as_user,
            "fsGroupChangePolicy": "OnRootMismatch",
        }
    return strategic_merge.merge(context, inputs.security_context, "security_context")


def _container_security(inputs: PodInputs) -> dict[str, Any]:
    context: dict[str, Any] = {"allowPrivilegeEscalation": False}
    if not inputs.run_as_root:
        context |= {"runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}}
    if inputs.placement.rdma and inputs.placement.rdma.ipc_lock:
        context["capabilities"] = {**context.get("capabilities", {}), "add": ["IPC_LOCK"]}
    return context


def _add_shared_memory(spec: dict[str, Any], inputs: PodInputs, name: str) -> None:
    """Put memory at /dev/shm, where a runtime's own 64 MiB are too small for NCCL and loaders."""
    container = _named(spec.get("containers", []), name)
    if inputs.shm_size == "0" or container is None or spec.get("hostIPC"):
        return
    mounts = container.setdefault("volumeMounts", [])
    if any(str(mount.get("mountPath", "")).rstrip("/") == SHM_MOUNT for mount in mounts):
        return
    source = {"medium": "Memory"} | ({"sizeLimit": inputs.shm_size} if inputs.shm_size else {})
    spec.setdefault("volumes", []).append({"name": SHM_VOLUME, "emptyDir": source})
    mounts.append({"name": SHM_VOLUME, "mountPath": SHM_MOUNT})


def _named(items: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((item for item in items if item.get("name") == name), None)


def _check_lists(spec: dict[str, Any]) -> None:
    """Refuse an object or a string where a list belongs: an easy mistake in YAML."""

    def check(part: dict[str, Any], names: Iterable[str], where: str) -> None:
        for name in names:
            if not isinstance(part.get(name, []), list):
                # Of a program's own, which may hold secrets, only the type is said.
                own = name in ("command", "args", "env")
                shown = f"a {type(part[name]).__name__}" if own else repr(part[name])
                raise InputError(f"{where}.{name} is {shown}; it must be a list.")

    check(spec, ("initContainers", "tolerations"), "pod_template_patch.spec")
    for container in _all_containers(spec):
        names = ("command", "args", "env", "envFrom", "ports", "volumeMounts")
        check(container, names, f"pod_template_patch: container {container['name']!r}")


def _render_texts(template: dict[str, Any]) -> None:
    """Write the numbers and truth values of a patch as texts where Kubernetes takes but these."""
    metadata, where = template["metadata"], "pod_template_patch.metadata"
    read_as = {"labels": k8s.label_map, "annotations": k8s.annotation_map}
    metadata |= {
        part: read(f"{where}.{part}", metadata[part])
        for part, read in read_as.items()
        if part in metadata
    }
    for container in _all_containers(template["spec"]):
        for variable in container.get("env", []):
            if "value" in variable:
                name = f"{container['name']}'s variable {variable['name']!r}"
                variable["value"] = variable_text(name, variable["value"])


def variable_text(name: str, value: Any) -> str:
    """Write a variable's value as a text; the message about another holds no value."""
    if isinstance(value, (dict, list)):
        # Not said: it may hold secrets.
        kind = type(value).__name__
        raise InputError(f"{name} must be a string, a number or true/false, not a {kind}.")
    return readers.rendered(name, value)


def _all_containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*spec.get("containers", []), *spec.get("initContainers", [])]


def _check_patch(spec: dict[str, Any], name: str) -> None:
    """Refuse what the launcher sets itself."""
    trains = _named(spec.get("containers") or [], name) or {}
    for variable in trains.get("env") or []:
        environment.check_name(str(variable["name"]), "pod_template_patch")
        environment.check_not_reserved(str(variable["name"]), "pod_template_patch")


def check_pod(spec: dict[str, Any], name: str) -> None:
    """Refuse what the operator's webhook or the API server would refuse, or never run."""
    if _named(spec.get("containers", []), name) is None:
        raise InputError(
            f"pod_template_patch removes the container {name!r}, which trains and must stay."
        )
    volumes = [volume.get("name") for volume in spec.get("volumes", [])]
    for volume in volumes:
        k8s.dns_label("The name of a volume", volume)
    _check_once("volumes", volumes)
    _check_once("containers", [container.get("name") for container in _all_containers(spec)])
    for container in _all_containers(spec):
        if not container.get("image"):
            raise InputError(f"The container {container.get('name')!r} has no image.")
        _check_mounts(container, volumes)
    pod_rules.check(spec)


def _check_once(what: str, names: list[Any]) -> None:
    twice = sorted({str(each) for each in names if names.count(each) > 1})
    if twice:
        raise InputError(f"Two {what} of the pod are called {twice[0]!r}; rename one.")


def _check_mounts(container: dict[str, Any], volumes: list[Any]) -> None:
    paths: list[str] = []
    for mount in container.get("volumeMounts", []):
        path = str(mount.get("mountPath", ""))
        if path in paths:
            raise InputError(f"Two volumes are mounted at {path!r}; mount one somewhere else.")
        if mount.get("name") not in volumes:
            raise InputError(
                f"The mount at {path!r} names the volume {mount.get('name')!r}; the pod has "
                f"{', '.join(map(str, volumes)) or 'none'}."
            )
        paths.append(path)
