"""The objects and claims that a person gives to a run on this machine, on its cluster."""

from __future__ import annotations

import contextlib
import hashlib
import http
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from kfp_pytorch.cli.runs import clusters
from kfp_pytorch.cli.runs.session import Target
from kfp_pytorch.launcher.constants import CLAIM, CONFIG_MAP, SERVING_RUNTIME
from kfp_pytorch.local import client, lifecycle
from kfp_pytorch.local.apiserver.registry import SECRET
from kfp_pytorch.local.controllers.kubernetes.claims import claim_folder
from kfp_pytorch.local.processes import locks

Object = dict[str, Any]
# Below the cluster's root: a file for each object that a run gave, locked as long as it runs.
_FOLDER = "objects"
_KINDS = {kind.kind: kind for kind in (SECRET, CONFIG_MAP, CLAIM, SERVING_RUNTIME)}
_CLAIM_SPEC = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}


@contextmanager
def given(target: Target, objects: list[Object], claims: dict[str, Path]) -> Iterator[None]:
    """Gives objects, and folders as claims, to a run; they stay in the cluster afterwards.

    Until the block ends, no other run can give something else by one of these names.

    Args:
        target: The cluster of the run.
        objects: Secrets, ConfigMaps, claims and ServingRuntimes.
        claims: The folders of claims, as absolute paths, by the claims' names.

    Raises:
        click.ClickException: The cluster refuses one, a claim has files of its own, or another run
            uses something else of that name.
    """
    if not (objects or claims):
        yield
        return
    with contextlib.ExitStack() as held:
        try:
            _give(held, target, objects, claims)
        except OSError as error:
            place = Path(error.filename or target.root)
            raise click.ClickException(str(lifecycle.HomeError(place, error))) from None
        yield


def _give(
    held: contextlib.ExitStack, target: Target, objects: list[Object], claims: dict[str, Path]
) -> None:
    with clusters.alone(target.root):
        for name, folder in claims.items():
            if _is_first(held, target, CLAIM.kind, name, str(folder)):
                _link(claim_folder(target.root, target.namespace, name), name, folder)
                _put(target, {"kind": CLAIM.kind, "spec": _CLAIM_SPEC}, name)
        for each in objects:
            name = each["metadata"]["name"]
            if _is_first(held, target, each["kind"], name, each):
                _put(target, each, name)


def _is_first(
    held: contextlib.ExitStack, target: Target, kind: str, name: str, content: Any
) -> bool:
    """Keeps others from giving something else by a name; whether no other run uses it yet."""
    folder = target.root / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    path, digest = folder / _digest([kind, name]), _digest(content)
    file = held.enter_context(os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+"))
    first = locks.take_alone(file)
    if first:
        file.truncate(0)
        file.write(digest)
        file.flush()
    elif file.read() != digest:
        raise click.ClickException(
            f"Another run on {target.root} uses another {kind} {name!r}: wait for its end, or give "
            "this run a cluster of its own, with --root."
        )
    locks.share(file)
    return first


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _put(target: Target, given: Object, name: str) -> None:
    """Creates or replaces an object; a claim that is there stays."""
    kind = _KINDS[given["kind"]]
    url = client.path(kind, target.namespace)
    metadata = {**given.get("metadata", {}), "name": name}
    body = {**given, "apiVersion": kind.api_version, "metadata": metadata}
    try:
        try:
            target.request("POST", url, body)
        except client.RequestRefused as error:
            if error.status != http.HTTPStatus.CONFLICT:
                raise
            there = target.request("GET", f"{url}/{name}")
            if kind != CLAIM:
                metadata["resourceVersion"] = there["metadata"]["resourceVersion"]
                target.request("PUT", f"{url}/{name}", body)
    except client.RequestRefused as error:
        raise click.ClickException(f"The {kind.kind} {name!r} is refused: {error}") from None


def _link(place: Path, name: str, folder: Path) -> None:
    if place.resolve() == folder:
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
    place.symlink_to(folder, target_is_directory=True)
