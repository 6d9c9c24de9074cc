"""What is read and asked before the first step of a run on this machine.

What it refuses of the jobs and steps that are known to run, a run would only meet minutes later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import click

from kfp_pytorch.cli.runs.session import Target
from kfp_pytorch.client.packages import given_objects, messages
from kfp_pytorch.client.packages.checks import deploy_inputs, job_of, known_kind
from kfp_pytorch.client.packages.find import Package
from kfp_pytorch.client.packages.known_tasks import KnownTask, defaults
from kfp_pytorch.launcher.constants import CLAIM, INFERENCE_SERVICE, POD, SERVING_RUNTIME
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import k8s
from kfp_pytorch.launcher.jobs.registry import STEPS
from kfp_pytorch.launcher.kserve import manifest
from kfp_pytorch.local import client
from kfp_pytorch.local.apiserver.registry import CLUSTER_SERVING_RUNTIME
from kfp_pytorch.local.controllers.kserve.runtimes import Refusal, select_runtime
from kfp_pytorch.local.controllers.kserve.storage import STORAGE_CONFIG
from kfp_pytorch.local.controllers.kubernetes import one_machine
from kfp_pytorch.local.kfp import task_settings, without_gpus

Object = dict[str, Any]
# The inputs of a job that may mount something.
_WITH_MOUNTS = ("task_config", "pod_template_patch")
# Every machine has it.
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 (where volumes are mounted, not a file of this program)


@dataclass(frozen=True)
class Given:
    """What a person gives to a run on this machine, and what that makes of its steps."""

    objects: list[Object] = field(default_factory=list)  # Secrets, ConfigMaps, claims, runtimes
    claims: dict[str, Path] = field(default_factory=dict)  # claims that are folders, by name
    pods: dict[str, Object] = field(default_factory=dict)  # see `pods`
    variables: dict[str, str] = field(default_factory=dict)  # of the steps' programs
    without_gpus: list[str] = field(default_factory=list)  # executors, see `step.Setting`


def read(secrets: list[str], claims: list[str], runtimes: list[str], *, cpu: bool) -> Given:
    """Reads what the options name. Raises click.ClickException: one is wrong."""
    folders = dict(_claim(text) for text in claims)
    objects = [
        each
        for each in given_objects.read(map(Path, secrets), given_objects.SECRET_KINDS)
        if not (each["kind"] == CLAIM.kind and each["metadata"]["name"] in folders)
    ]
    servers = given_objects.read(map(Path, runtimes), given_objects.RUNTIME_KINDS)
    if cpu:
        servers = [
            {**each, "spec": without_gpus.pod_spec(each.get("spec") or {})} for each in servers
        ]
    return Given(objects + servers, folders)


def _claim(text: str) -> tuple[str, Path]:
    name, _, given = text.partition("=")
    folder = Path(given).expanduser().resolve()
    if not name.strip() or not given or not folder.is_dir():
        raise click.ClickException(
            f"--claim is {text!r}; it takes NAME=FOLDER, and the folder must exist."
        )
    try:
        return k8s.dns_subdomain("the claim's name", name), folder
    except InputError as error:
        raise click.ClickException(f"--claim is {text!r}: {error.message}") from None


def local_package(package: Package) -> Package:
    """A package whose `kfp.kubernetes` settings are those that a run on this machine heeds."""
    settings = {
        label: {name: of[name] for name in task_settings.HEEDED & of.keys()}
        for label, of in messages.kubernetes_settings(package.platform).items()
    }
    platform = {"platforms": {"kubernetes": {"deploymentSpec": {"executors": settings}}}}
    return replace(package, platform=platform if settings else {})


def check(pipeline: str, tasks: list[KnownTask], pods: dict[str, Object], target: Target) -> None:
    """Asks the local cluster for what tasks need. Raises click.ClickException."""
    found = [
        f"task {task.name}: {why}"
        for task in tasks
        if task.certain
        for why in (
            *_refused_job(task, target),
            *_refused_server(task, target),
            *_lacking(pods.get(task.label, {}), target),
        )
    ]
    if found:
        words = "\n".join(dict.fromkeys(found))
        raise click.ClickException(f"{pipeline}: {words}")


def _refused_job(task: KnownTask, target: Target) -> Iterator[str]:
    """Why the cluster would not take the job of a task."""
    kind = known_kind(task)
    if kind and "namespace" not in task.unknown:
        namespace = str(task.inputs.get("namespace") or target.namespace)
        url = client.path(kind.resource, namespace)
        yield from _refused(target, url, job_of(_without_files(task)))


def _without_files(task: KnownTask) -> KnownTask:
    """A task without the code whose ConfigMap its step makes; code on a claim must be there."""
    of_claim = "uri" in (task.inputs.get("source") or {})
    return task if of_claim else replace(task, inputs={**task.inputs, "source": {}})


def _refused_server(task: KnownTask, target: Target) -> Iterator[str]:
    """Why the cluster would not take the pod of the model server that a task deploys."""
    elsewhere = task.inputs.get("namespace") or "namespace" in task.unknown
    if task.function != "kserve_deploy" or elsewhere:
        return
    inputs = deploy_inputs(task)
    predictor = inputs.predictor
    server = predictor.get("model") or predictor["containers"][0]
    scheme, _, rest = inputs.source.uri.partition("://")
    claim = {"persistentVolumeClaim": {"claimName": rest.partition("/")[0]}}
    key = (server.get("storage") or {}).get("key")
    of_storage = {"valueFrom": {"secretKeyRef": {"name": STORAGE_CONFIG, "key": key}}}
    env = [*(server.get("env") or []), *([of_storage] if key else [])]
    volumes = [*(predictor.get("volumes") or []), *([claim] if scheme == "pvc" else [])]
    yield from _lacking({"env": env, "volumes": volumes}, target)
    container = {"name": "server", "image": "any", "resources": server.get("resources") or {}}
    placed = {key: predictor.get(key) or {} for key in ("nodeSelector", "affinity")}
    spec = {"containers": [container], **placed}
    pod = {"metadata": {"name": "server"}, "spec": spec}
    yield from _refused(target, client.path(POD, target.namespace), pod)
    service = manifest.manifest(inputs, None)
    refused = list(_refused(target, client.path(INFERENCE_SERVICE, target.namespace), service))
    yield from refused or _without_runtime(service, target)


def _without_runtime(service: Object, target: Target) -> Iterator[str]:
    """That no ServingRuntime serves a model, for which KServe would wait."""
    of_cluster = f"/apis/{CLUSTER_SERVING_RUNTIME.api_version}/{CLUSTER_SERVING_RUNTIME.plural}"
    paths = (client.path(SERVING_RUNTIME, target.namespace), of_cluster)
    found = [each for path in paths for each in target.request("GET", path)["items"]]
    try:
        select_runtime(service, found)
    except Refusal as refusal:
        model = service["spec"]["predictor"].get("model") or {}
        wanted = model.get("runtime") or (model.get("modelFormat") or {}).get("name")
        yield (
            f"{refusal.message} ({wanted!r}). Give a ServingRuntime whose container has a command "
            "that is on this machine: `kfp-pytorch run … --local --runtimes FILE`. Triton, vLLM "
            "and HuggingFace's server come as images, which run on a cluster only."
        )


def _refused(target: Target, url: str, made: Object) -> Iterator[str]:
    """Why the cluster would not take an object."""
    try:
        target.request("POST", f"{url}?dryRun=All", made)
    except client.RequestRefused as error:
        if error.status == HTTPStatus.CONFLICT:
            return  # one of that name is there, as of an earlier run: the step updates it
        said = str(error).rpartition("denied the request: ")[2]
        yield said.rpartition("is forbidden: ")[2]


def _lacking(pod: Object, target: Target) -> Iterator[str]:
    """The objects that the pod of a step uses, and that are not there."""
    spec = {"containers": [{"env": pod.get("env")}], "volumes": pod.get("volumes")}
    for kind, name, key in one_machine.references(spec):
        found: Object | None
        try:
            found = target.request("GET", client.path(kind, target.namespace, name))
        except client.RequestRefused:
            found = None
        why = one_machine.lacking(kind, name, key, found)
        if why:
            yield why


def pods(package: Package, arguments: Object) -> dict[str, Object]:
    """The variables and volumes of the steps' own pods, by executor.

    Raises click.ClickException: only the run knows the name of an object that one uses.
    """
    kubernetes = messages.kubernetes_settings(package.platform)
    known = defaults(package.spec["root"], {}) | arguments
    for label, settings in kubernetes.items():
        for setting, given in settings.items():
            named = setting in task_settings.OBJECT_SETTINGS
            if named and not all(task_settings.name_of(each, setting, known) for each in given):
                raise click.ClickException(
                    f"{package.pipeline_name}: step {label.removeprefix('exec-')}: only the run "
                    f"knows the name of an object that it uses ({setting}); a run on this machine "
                    "needs it beforehand: give it as text, or by a parameter of the pipeline."
                )
    return task_settings.pod_settings(package.spec, kubernetes, known)


def mounts(pods: dict[str, Object], tasks: list[KnownTask]) -> Iterator[str]:
    """Says where steps and jobs find what is mounted, where no value of theirs has the path."""
    for task in tasks:
        declared = list(pods.get(task.label, {}).get("volumeMounts", []))
        if task.function in STEPS:
            patch = (task.inputs.get("pod_template_patch") or {}).get("spec") or {}
            for container in [task.inputs.get("task_config") or {}, *patch.get("containers", [])]:
                declared += container.get("volumeMounts") or []
        given = {key: value for key, value in task.inputs.items() if key not in _WITH_MOUNTS}
        texts = list(_texts([given, pods.get(task.label, {}).get("env", [])]))
        paths = [
            path
            for path in dict.fromkeys(str(mount["mountPath"]) for mount in declared)
            if path != _SHARED_MEMORY and not any(_begins(text, path) for text in texts)
        ]
        if paths:
            yield (
                f"task {task.name}: a path in its code finds nothing of what is mounted on a "
                f"cluster at {', '.join(paths)}. A parameter, an argument or a variable that "
                "begins with such a path gets the folder here in its place."
            )


def _begins(text: str, path: str) -> bool:
    """Whether a text, or its value as an option, is a path or one below it."""
    found = {text, text.partition("=")[2]}
    below = f"{path.rstrip('/')}/"
    return any(f"{each.rstrip('/')}/".startswith(below) for each in found)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
