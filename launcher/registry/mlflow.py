"""Registers a model to MLflow's model registry.

Its API: https://mlflow.org/docs/latest/rest-api.html. Versions have a number each, which the server
gives; what makes one the version of a model is kept in its tags.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote_plus, urlsplit

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import readers
from kfp_pytorch.launcher.registry.http import (
    AlreadyThere,
    Api,
    NotFound,
    Object,
    Refused,
    Unanswered,
)
from kfp_pytorch.launcher.registry.record import Record
from kfp_pytorch.launcher.registry.register_inputs import MLFLOW_API, Property
from kfp_pytorch.launcher.runtime.printing import log

_PREFIX = "kfp_pytorch."
_VERSION_TAG, _SHA256_TAG = f"{_PREFIX}version", f"{_PREFIX}sha256"
# What MLflow takes in a tag's name.
_NOT_IN_A_TAG = re.compile(r"[^A-Za-z0-9_./ -]")
_MOST = 1000


@dataclass(frozen=True)
class Registered:
    """What MLflow has of a model."""

    version: str  # its number
    run_id: str  # of the MLflow run that trained it; empty where none is known
    url: str  # of the version, in the UI


def check_source(uri: str) -> None:
    """Refuse a model's place that MLflow refuses, as far as its server's settings do not matter.

    https://github.com/mlflow/mlflow/blob/v3.17.2/mlflow/server/handlers.py (_validate_source_run).
    """
    plain = uri
    while (unquoted := unquote_plus(plain)) != plain:
        plain = unquoted
    parts = [part for part in urlsplit(plain).path.split("/") if part]
    if not parts or {".", ".."} & set(plain.split("/")) or "\0" in plain:
        raise InputError(
            f"The model lies at {uri!r}, which MLflow refuses: it wants a path in the bucket or "
            "claim, without '.' and '..' in it."
        )


def register(
    api: Api, record: Record, run_id: str = "", aliases: tuple[str, ...] = ()
) -> Registered:
    """Register a model, or find that it is, and change what differs.

    `run_id`: of the MLflow run that trained it; empty to look for one of the job's name. `aliases`:
    those that this version gets, and any other version then loses. Raises InputError: the version
    is another model's. Raises RegistryError: MLflow refused a request, or did not answer for too
    long.
    """
    model = _registered_model(api, record.name)
    run_id = run_id or _run_of_the_job(api, record)
    version = _version(api, record, run_id)
    number = str(version["version"])
    held = {item["alias"]: str(item["version"]) for item in model.get("aliases") or []}
    for alias in aliases:
        if held.get(alias) == number:
            continue
        body = {"name": record.name, "alias": alias, "version": number}
        api.change("POST", "/registered-models/alias", body)
        log(f"MLflow: version {number} of {record.name!r} is now {alias!r}")
    base = api.server.url.removesuffix(MLFLOW_API)
    url = f"{base}/#/models/{quote(record.name, safe='')}/versions/{number}"
    return Registered(number, str(version.get("run_id") or ""), url)


def _registered_model(api: Api, name: str) -> Object:
    def attempt() -> Object:
        try:
            found = api.ask("GET", "/registered-models/get", {"name": name})
        except NotFound:
            found = {}
        model: Object = found.get("registered_model") or {}
        called = model.get("name", "")
        if called and called != name:
            raise InputError(
                f"model_name is {name!r}, and MLflow has the model {called!r}. Its database takes "
                "the two for one name: use that one."
            )
        if called:
            return model
        try:
            api.ask("POST", "/registered-models/create", body={"name": name})
        except AlreadyThere as error:
            raise Unanswered(error.message) from None
        log(f"MLflow: created registered model {name!r}")
        return {}

    return api.retried(attempt)


def _run_of_the_job(api: Api, record: Record) -> str:
    """Find the MLflow run that training reported to: training calls it as its job."""
    job = record.text("job")
    if not re.fullmatch(r"[a-z0-9-]+", job):
        return ""

    def search() -> list[Object]:
        found = api.ask("POST", "/experiments/search", body={"max_results": _MOST})
        ids = [experiment["experiment_id"] for experiment in found.get("experiments") or []]
        body = {
            "experiment_ids": ids,
            "filter": f"attributes.run_name = '{job}'",
            "order_by": ["attributes.start_time DESC"],
            "max_results": 1,
        }
        return list(api.ask("POST", "/runs/search", body=body).get("runs") or [])

    try:
        runs = api.retried(search)
    except Refused as error:
        log(f"warning: whether MLflow has a run of job {job!r} is not known: {error.short}")
        return ""
    return str(runs[0]["info"]["run_id"]) if runs else ""


def _version(api: Api, record: Record, run_id: str) -> Object:
    tags = _tags({**record.first, **record.properties}) | {_VERSION_TAG: record.version}
    tags |= _tags(record.own, prefix="")
    wanted: Object = {
        "name": record.name,
        "source": record.uri,
        "tags": [{"key": key, "value": value} for key, value in tags.items()],
        "description": record.description,
        "run_id": run_id,
    }

    def attempt() -> tuple[Object, bool]:
        if found := _found(api, record):
            return found[0], False
        body = {key: value for key, value in wanted.items() if value}
        made: Object = api.ask("POST", "/model-versions/create", body=body)["model_version"]
        log(f"MLflow: created version {made['version']} of {record.name!r}")
        return made, True

    version, is_new = api.retried(attempt)
    if is_new:
        version = _first(api, record, version)
    return _updated(api, record, version, tags)


def _found(api: Api, record: Record) -> list[Object]:
    """The versions that are this one, the first made first. Raises InputError: it is another's."""
    where = f"name = '{record.name}' and tags.`{_VERSION_TAG}` = '{record.version}'"
    answer = api.ask("GET", "/model-versions/search", {"filter": where, "max_results": _MOST})
    versions = sorted(answer.get("model_versions") or [], key=lambda item: int(item["version"]))
    for item in versions:
        uri, sha256 = str(item.get("source") or ""), _tag(item, _SHA256_TAG)
        if record.is_another(uri, sha256):
            raise InputError(
                f"MLflow has the version {record.version!r} of {record.name!r} as number "
                f"{item['version']}, and it is another model, at {uri!r} with sha256 "
                f"{sha256 or 'unknown'}; this one is at {record.uri!r} with sha256 "
                f"{record.sha256 or 'unknown'}. Give another version, or leave it empty."
            )
    return versions


def _first(api: Api, record: Record, version: Object) -> Object:
    """Return the first of the versions that are this one, and delete the new one where it is later.

    MLflow refuses no second version of the same model, and another step may have made one.
    """
    versions = api.retried(lambda: _found(api, record))
    first = versions[0] if versions else version
    if first["version"] == version["version"]:
        return first
    log(f"MLflow: another step made version {first['version']} of this model at the same moment")
    body = {"name": record.name, "version": version["version"]}
    try:
        api.change("DELETE", "/model-versions/delete", body)
    except NotFound:
        pass
    except Refused as error:
        log(f"warning: version {version['version']} is the same model, and stays: {error.short}")
    return first


def _updated(api: Api, record: Record, version: Object, tags: Mapping[str, str]) -> Object:
    number = str(version["version"])
    kept = {*_tags(record.first)} & {tag["key"] for tag in version.get("tags") or []}
    changed = {
        key: value for key, value in tags.items() if key not in kept and _tag(version, key) != value
    }
    for key, value in changed.items():
        body = {"name": record.name, "version": number, "key": key, "value": value}
        api.change("POST", "/model-versions/set-tag", body)
    if record.description and version.get("description") != record.description:
        body = {"name": record.name, "version": number, "description": record.description}
        api.change("PATCH", "/model-versions/update", body)
    return version


def _tags(properties: Mapping[str, Property], prefix: str = _PREFIX) -> dict[str, str]:
    return {
        prefix + _NOT_IN_A_TAG.sub("_", name): readers.rendered(name, value)
        for name, value in properties.items()
    }


def _tag(version: Mapping[str, Any], key: str) -> str:
    tags = version.get("tags") or []
    return next((str(tag.get("value") or "") for tag in tags if tag.get("key") == key), "")
