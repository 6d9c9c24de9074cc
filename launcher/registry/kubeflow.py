"""Registers a model to Kubeflow's Model Registry.

Its API: https://github.com/kubeflow/model-registry/blob/v0.3.8/api/openapi/model-registry.yaml. It
has a registered model, versions of it, and an artifact of a version, which says where it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.registry.http import AlreadyThere, Api, NotFound, Object, Unanswered
from kfp_pytorch.launcher.registry.record import Record, format_version
from kfp_pytorch.launcher.registry.register_inputs import Property
from kfp_pytorch.launcher.runtime.printing import log

_ARTIFACT = "model-artifact"
_PAGE = 100


@dataclass(frozen=True)
class Registered:
    """What the registry has of a model."""

    model_id: str
    version_id: str
    artifact_id: str
    url: str  # of the version, in the API


def register(api: Api, record: Record) -> Registered:
    """Register a model, or find that it is, and change what differs.

    Raises InputError: the version is another model's. Raises RegistryError: the registry refused a
    request, or did not answer for too long.
    """
    model = _registered_model(api, record)
    version = _version(api, record, model)
    artifact = _artifact(api, record, version)
    url = f"{api.server.url}/model_versions/{version['id']}"
    return Registered(str(model["id"]), str(version["id"]), str(artifact["id"]), url)


def _registered_model(api: Api, record: Record) -> Object:
    wanted = {"name": record.name}

    def find() -> Object | None:
        found = _named(api, "/registered_model", "/registered_models", record.name, {})
        if found and found["name"] != record.name:
            raise InputError(
                f"model_name is {record.name!r}, and the registry has the model {found['name']!r}. "
                "Its database takes the two for one name: use that one."
            )
        return found

    model = _ensured(api, find, "/registered_models", wanted, f"registered model {record.name!r}")
    _warn_if_archived(model, f"registered model {record.name!r}")
    return model


def _version(api: Api, record: Record, model: Object) -> Object:
    what = f"version {record.version!r} of {record.name!r}"
    inside = f"/registered_models/{model['id']}/versions"

    def find() -> Object | None:
        parent = {"parentResourceId": str(model["id"])}
        found = _named(api, "/model_version", inside, record.version, parent)
        return found if found and found["name"] == record.version else None

    wanted: Object = {
        "name": record.version,
        "registeredModelId": str(model["id"]),
        "customProperties": _custom({**record.first, **record.properties, **record.own}),
    }
    if record.description:
        wanted["description"] = record.description
    version = _ensured(api, find, "/model_versions", wanted, what)
    _warn_if_archived(version, what)
    has = version.get("customProperties") or {}
    _check_same(record, what, _text(has.get("storage_uri")), _text(has.get("sha256")))
    properties = _custom(record.first) | has | _custom({**record.properties, **record.own})
    changed: Object = {"customProperties": properties} if properties != has else {}
    if record.description and version.get("description") != record.description:
        changed["description"] = record.description
    return _updated(api, f"/model_versions/{version['id']}", version, changed, what)


def _artifact(api: Api, record: Record, version: Object) -> Object:
    what = f"the artifact of version {record.version!r}"
    inside = f"/model_versions/{version['id']}/artifacts"

    def find() -> Object | None:
        artifacts = [item for item in _listed(api, inside) if item["artifactType"] == _ARTIFACT]
        same = [item for item in artifacts if item.get("uri") == record.uri]
        if artifacts and not same:
            shown = f"version {record.version!r} of {record.name!r}"
            _check_same(record, shown, str(artifacts[0].get("uri") or ""), "")
        return next(iter(same), None)

    fields = {
        "uri": record.uri,
        "modelFormatName": record.format,
        "modelFormatVersion": format_version(record),
        **_source(record.properties),
    }
    given = {name: value for name, value in fields.items() if value}
    wanted = {"artifactType": _ARTIFACT, "name": record.version, "state": "LIVE"}
    artifact = _ensured(api, find, inside, wanted | _source(record.first) | given, what)
    changed = {name: value for name, value in given.items() if artifact.get(name) != value}
    if changed and "state" in artifact:
        # The server takes a change without a state for one to UNKNOWN.
        changed["state"] = artifact["state"]
    return _updated(api, f"/model_artifacts/{artifact['id']}", artifact, changed, what)


def _source(known: Mapping[str, Property]) -> Object:
    """The fields of an artifact that name the run that made it."""
    if "run_id" not in known:
        return {}
    return {
        "modelSourceKind": "pipelines",
        "modelSourceClass": "pipelinerun",
        "modelSourceGroup": known.get("namespace", ""),
        "modelSourceId": known["run_id"],
        "modelSourceName": known.get("pipeline", ""),
    }


def _named(
    api: Api, search: str, everything: str, name: str, query: Mapping[str, str]
) -> Object | None:
    """Find a resource by its name.

    The server compares names with SQL's LIKE: `_` and `%` fit any character, some databases take
    upper for lower case, and several that fit are answered as none.
    """
    try:
        found = api.ask("GET", search, {"name": name, **query})
    except NotFound:
        found = {}
    if found.get("name") == name or not set("_%\\") & set(name):
        return found or None
    return next((item for item in _listed(api, everything) if item["name"] == name), None)


def _listed(api: Api, path: str) -> list[Object]:
    items: list[Object] = []
    query: dict[str, str | int] = {"pageSize": _PAGE}
    while True:
        answer = api.ask("GET", path, query)
        items += answer.get("items") or []
        token = answer.get("nextPageToken")
        if not token:
            return items
        query["nextPageToken"] = token


def _ensured(
    api: Api, find: Callable[[], Object | None], path: str, wanted: Object, what: str
) -> Object:
    """Return what is found, or else create it: another step may do so at the same moment."""

    def attempt() -> Object:
        if found := find():
            return found
        try:
            created = api.ask("POST", path, body=wanted)
        except AlreadyThere as error:
            if found := find():
                return found
            raise Unanswered(f"{error.message}\nNothing of that name is found there.") from None
        log(f"{api.server.title}: created {what}")
        return created

    return api.retried(attempt)


def _updated(api: Api, path: str, item: Object, changed: Object, what: str) -> Object:
    if not changed:
        return item
    answer = api.change("PATCH", path, changed)
    log(f"{api.server.title}: changed {', '.join(changed)} of {what}")
    return answer


def _check_same(record: Record, what: str, uri: str, sha256: str) -> None:
    if record.is_another(uri, sha256):
        raise InputError(
            f"The registry has {what}, and it is another model, at {uri or record.uri!r} with "
            f"sha256 {sha256 or 'unknown'}; this one is at {record.uri!r} with sha256 "
            f"{record.sha256 or 'unknown'}. Give another version, or leave it empty."
        )


def _warn_if_archived(item: Mapping[str, Any], what: str) -> None:
    if item.get("state") == "ARCHIVED":
        log(f"warning: {what} is archived in the registry, and stays so")


def _custom(properties: Mapping[str, Property]) -> Object:
    return {
        name: {"metadataType": "MetadataDoubleValue", "double_value": value}
        if isinstance(value, float)
        else {"metadataType": "MetadataStringValue", "string_value": value}
        for name, value in properties.items()
    }


def _text(value: Any) -> str:
    return str(value.get("string_value") or "") if isinstance(value, Mapping) else ""
