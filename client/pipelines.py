"""Uploads pipelines: a pipeline once, then a version for each content."""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

from kfp_pytorch.client import pages
from kfp_pytorch.client.connection import Connection, Effect
from kfp_pytorch.client.errors import (
    ClientError,
    ConflictError,
    NotFoundError,
    UnknownOutcomeError,
)
from kfp_pytorch.client.packages.find import Package

# KFP's own limits, in characters: backend/src/apiserver/validation/length.go.
_LONGEST_PIPELINE, _LONGEST_VERSION = 128, 127
# It travels in the URL.
_LONGEST_DESCRIPTION = 1_000
_HASH = 12


@dataclass(frozen=True)
class Version:
    """A version of an uploaded pipeline.

    Attributes:
        pipeline: The pipeline's name.
        pipeline_id: Its id.
        name: The version's name.
        version_id: Its id.
        uploaded: Whether it was uploaded by this call; else it was there already.
        url: Its page in KFP's UI; empty where the UI's address is not known.
    """

    pipeline: str
    pipeline_id: str
    name: str
    version_id: str
    uploaded: bool
    url: str


def package_of(pipeline: Any) -> Package:
    """Reads and compiles what names or is a pipeline, and checks it as `compile` does.

    `pipeline`: a function under `@dsl.pipeline`, a package, or what the command takes: the path of
    a compiled YAML, `FILE.py:FUNCTION`, the name of a shipped one.
    Raises ClientError.
    """
    # Only what takes a pipeline waits for the import of the components.
    from kfp_pytorch.client.packages import find, workflow

    try:
        if isinstance(pipeline, Package):
            package = pipeline
        elif isinstance(pipeline, str | Path):
            package = find.find_one(str(pipeline))
        else:
            package = find.compile_pipeline(pipeline.name.replace("-", "_"), pipeline)
        workflow.check(package)
    except click.ClickException as error:
        raise ClientError(error.message) from None
    return package


def content_name(package: Package) -> str:
    """The name of a package's version: the same for the same content, and for no other."""
    content = json.dumps([package.spec, package.platform], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:_HASH]


def upload(
    connection: Connection,
    package: Package,
    *,
    name: str = "",
    version: str = "",
    description: str = "",
) -> Version:
    """Uploads a package as a version of a pipeline, unless it is there already.

    `name`: of the pipeline; that of the package by default. `version`: the version's name; by
    default one that is made of the content. `description`: of the version, and of a pipeline that
    is made; the package's own by default.
    Raises ClientError: KFP does not take a name, or the version's name has another content.
    """
    name, version = name or package.pipeline_name, version or content_name(package)
    for what, given, most in (
        ("pipeline", name, _LONGEST_PIPELINE),
        ("version", version, _LONGEST_VERSION),
    ):
        if len(given) > most or not given.strip():
            raise ClientError(
                f"The {what}'s name is {given!r}; KFP takes from 1 to {most} characters."
            )
    if "/" in name:
        # KFP finds it by the path of a URL.
        raise ClientError(
            f"The pipeline's name is {name!r}; KFP finds none again whose name has '/'. Write "
            "another character."
        )
    words = description or str(package.spec["pipelineInfo"].get("description", ""))
    pipeline, made = _pipeline(connection, name, words)
    there = None if made else _version(connection, pipeline.pipeline_id, version)
    if there is not None:
        _check_same(package, there, name, version)
    uploaded = there is None
    if there is None:
        try:
            there = _upload(connection, package, pipeline.pipeline_id, version, words)
        except ClientError:
            if made:
                delete = connection.client.pipelines.pipeline_service_delete_pipeline
                connection.call(delete, effect=Effect.ACTS, pipeline_id=pipeline.pipeline_id)
            raise
    return _known(connection, name, version, pipeline.pipeline_id, there, uploaded=uploaded)


def find_uploaded(connection: Connection, package: Package) -> Version | None:
    """The version that has just this content, under the package's own name; None if none has."""
    name, version = package.pipeline_name, content_name(package)
    pipeline = _named(connection, name)
    found = _version(connection, pipeline.pipeline_id, version) if pipeline else None
    if pipeline is None or found is None:
        return None
    return _known(connection, name, version, pipeline.pipeline_id, found, uploaded=False)


def _known(
    connection: Connection, name: str, version: str, pipeline_id: str, found: Any, *, uploaded: bool
) -> Version:
    """A version of the API as this package knows it."""
    version_id = found.pipeline_version_id
    url = connection.link(f"pipelines/details/{pipeline_id}/version/{version_id}")
    return Version(name, pipeline_id, version, version_id, uploaded, url)


def _pipeline(connection: Connection, name: str, description: str) -> tuple[Any, bool]:
    """The pipeline of a name, and whether it was made now."""
    found = _named(connection, name)
    if found is not None:
        return found, False
    # A server before 2.15 knows no `name`; a newer one takes the display name for it.
    body = {"display_name": name, "description": description, **connection.within}
    create = connection.client.pipelines.pipeline_service_create_pipeline
    try:
        return connection.call(create, pipeline=body, effect=Effect.CREATES), True
    except (ConflictError, UnknownOutcomeError) as error:
        # Somebody was faster, or the answer was lost.
        found = _named(connection, name)
        if found is None:
            raise ClientError(f"The pipeline {name!r} could not be made: {error}.") from None
        return found, False


def _named(connection: Connection, name: str) -> Any:
    get = connection.client.pipelines.pipeline_service_get_pipeline_by_name
    try:
        return connection.call(get, name=name, **connection.within)
    except NotFoundError:
        return None


def _version(connection: Connection, pipeline_id: str, name: str) -> Any:
    method = connection.client.pipelines.pipeline_service_list_pipeline_versions
    found = pages.every(
        connection,
        method,
        "pipeline_versions",
        filter=pages.equals(name=name),
        pipeline_id=pipeline_id,
    )
    return next(iter(found), None)


def _upload(
    connection: Connection, package: Package, pipeline_id: str, version: str, description: str
) -> Any:
    send = connection.client.pipeline_uploads.upload_pipeline_version
    # KFP says nothing else of a broken package than that it is; a malformed one it never ends with.
    text = package.text()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "package.yaml")
        path.write_text(text, encoding="utf-8")
        try:
            return connection.call(
                send,
                str(path),
                name=version,
                pipelineid=pipeline_id,
                description=description[:_LONGEST_DESCRIPTION],
                effect=Effect.CREATES,
            )
        except (ConflictError, UnknownOutcomeError) as error:
            found = _version(connection, pipeline_id, version)
            if found is None:
                raise ClientError(
                    f"{package.pipeline_name} could not be uploaded: {error}. Try again."
                ) from None
            return found


def _check_same(package: Package, there: Any, name: str, version: str) -> None:
    """Refuses a version's name that has another content already."""
    if content_name(package) == version:
        return
    held = there.pipeline_spec or {}
    spec, platform = held.get("pipeline_spec", held), held.get("platform_spec", {})
    if _messages(spec, platform) != _messages(package.spec, package.platform):
        raise ClientError(
            f"Pipeline {name!r} has a version {version!r} with other content. Choose another name, "
            "or leave it out: the version is then named after its content."
        )


def _messages(spec: Any, platform: Any) -> tuple[Any, Any]:
    """A package as KFP reads it, whoever wrote it."""
    return (
        json_format.ParseDict(spec, pipeline_spec_pb2.PipelineSpec()),
        json_format.ParseDict(platform, pipeline_spec_pb2.PlatformSpec()),
    )
