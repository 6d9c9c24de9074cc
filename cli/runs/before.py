"""What is done on the local cluster before a run's first step: give it objects, and ask it.

What it refuses of the jobs and steps that are known to run, a run would only meet minutes later.
"""

from __future__ import annotations

import http
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from kfp_pytorch.cli.packages import given_objects, messages
from kfp_pytorch.cli.packages.checks import job_of
from kfp_pytorch.cli.packages.find import Package
from kfp_pytorch.cli.packages.known_tasks import KnownTask, defaults, known_tasks
from kfp_pytorch.cli.runs.session import Target
from kfp_pytorch.launcher.constants import CLAIM, CONFIG_MAP, SERVING_RUNTIME
from kfp_pytorch.launcher.jobs.registry import KINDS
from kfp_pytorch.local import client
from kfp_pytorch.local.apiserver.registry import SECRET
from kfp_pytorch.local.controllers.kubernetes import one_machine
from kfp_pytorch.local.controllers.kubernetes.claims import claim_folder
from kfp_pytorch.local.kfp import task_settings

Object = dict[str, Any]
HEEDED = task_settings.OBJECT_SETTINGS
"""The settings of `kfp.kubernetes` that a run on this machine heeds."""

_KINDS = {kind.kind: kind for kind in (SECRET, CONFIG_MAP, CLAIM, SERVING_RUNTIME)}


@dataclass(frozen=True)
class Given:
    """What a person gives to a run on this machine, and what that makes of its steps."""

    objects: list[Object] = field(default_factory=list)  # Secrets, ConfigMaps, claims, runtimes
    claims: dict[str, Path] = field(default_factory=dict)  # claims that are folders, by name
    pods: dict[str, Object] = field(default_factory=dict)  # see `pods`
    variables: dict[str, str] = field(default_factory=dict)  # of the steps' programs


def read(secrets: tuple[Path, ...], claims: tuple[str, ...], runtimes: tuple[Path, ...]) -> Given:
    """Reads what the options name. Raises click.ClickException: one is wrong."""
    folders = {}
    for text in claims:
        name, separator, folder = text.partition("=")
        if not separator or not name or not Path(folder).is_dir():
            raise click.ClickException(
                f"--claim is {text!r}; it takes NAME=FOLDER, and the folder must exist."
            )
        folders[name] = Path(folder)
    objects = given_objects.read(secrets, given_objects.SECRET_KINDS)
    return Given(objects + given_objects.read(runtimes, given_objects.RUNTIME_KINDS), folders)


def local_package(package: Package) -> Package:
    """A package whose `kfp.kubernetes` settings are those that a run on this machine heeds."""
    settings = {
        label: {name: of[name] for name in HEEDED & of.keys()}
        for label, of in messages.kubernetes_settings(package.platform).items()
    }
    platform = {"platforms": {"kubernetes": {"deploymentSpec": {"executors": settings}}}}
    return replace(package, platform=platform if settings else {})


def give(target: Target, given: Given) -> None:
    """Creates or replaces objects in the run's namespace, and claims that are folders.

    Raises click.ClickException: the cluster refuses one, or a claim has files of its own.
    """
    objects = given.objects
    for name, folder in given.claims.items():
        _link(claim_folder(target.root, target.namespace, name), name, folder)
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        objects = [*objects, {"kind": CLAIM.kind, "metadata": {"name": name}, "spec": spec}]
    for each in objects:
        kind = _KINDS[each["kind"]]
        name, body = each["metadata"]["name"], {**each, "apiVersion": kind.api_version}
        try:
            _put(target, name, body)
        except client.RequestRefused as error:
            raise click.ClickException(f"The {kind.kind} {name!r} is refused: {error}") from None


def _put(target: Target, name: str, body: Object) -> None:
    kind = _KINDS[body["kind"]]
    url = client.path(kind, target.namespace)
    try:
        target.request("POST", url, body)
    except client.RequestRefused as error:
        if error.status != http.HTTPStatus.CONFLICT:
            raise
        there = target.request("GET", f"{url}/{name}")
        version = {"resourceVersion": there["metadata"]["resourceVersion"]}
        if kind != CLAIM:
            metadata = {**body["metadata"], **version}
            target.request("PUT", f"{url}/{name}", {**body, "metadata": metadata})


def _link(place: Path, name: str, folder: Path) -> None:
    if place.resolve() == folder.resolve():
        return
    if place.is_dir() and not place.is_symlink() and any(place.iterdir()):
        raise click.ClickException(
            f"The claim {name!r} has files of its own already, in {place}: move them away first, "
            f"or give {folder} another claim's name."
        )
    if place.is_symlink():
        place.unlink()
    elif place.is_dir():
        place.rmdir()
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(folder.resolve(), target_is_directory=True)


def check(package: Package, arguments: Object, pods: dict[str, Object], target: Target) -> None:
    """Asks the local cluster for what the known tasks need. Raises click.ClickException."""
    found = [
        f"task {task.name}: {why}"
        for task in known_tasks(package, arguments)
        if task.certain
        for why in (*_refused_job(task, target), *_lacking(pods.get(task.label, {}), target))
    ]
    if found:
        words = "\n".join(dict.fromkeys(found))
        raise click.ClickException(f"{package.pipeline_name}: {words}")


def _refused_job(task: KnownTask, target: Target) -> Iterator[str]:
    """Why the cluster would not take the job of a task."""
    if task.function not in KINDS or "namespace" in task.unknown:
        return
    job, kind = job_of(task), KINDS[task.function].resource
    namespace = str(task.inputs.get("namespace") or target.namespace)
    try:
        target.request("POST", f"{client.path(kind, namespace)}?dryRun=All", job)
    except client.RequestRefused as error:
        yield str(error).rpartition("denied the request: ")[2]


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
            if not all(task_settings.name_of(each, setting, known) for each in given):
                raise click.ClickException(
                    f"{package.pipeline_name}: step {label.removeprefix('exec-')}: only the run "
                    f"knows the name of an object that it uses ({setting}); a run on this machine "
                    "needs it beforehand: give it as text, or by a parameter of the pipeline."
                )
    return task_settings.pod_settings(package.spec, kubernetes, known)


def mounts(pods: dict[str, Object]) -> list[str]:
    """Says at which paths steps find what is mounted."""
    return [
        f"step {label.removeprefix('exec-')}: {mount['name']} is mounted at {mount['mountPath']} "
        "on a cluster; here a parameter or variable that begins with that path gets the folder in "
        "its place, but a path in the code finds nothing."
        for label, pod in pods.items()
        for mount in pod.get("volumeMounts", [])
    ]
