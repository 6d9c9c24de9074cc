"""Kubeflow's Model Registry, as far as a model is registered to it: it answers as v0.3.8 does.

Stricter in one thing: of an artifact too it takes no field that its API does not name.
"""

from __future__ import annotations

import re
import time
from typing import Any

from harness.registries.serving import Object, Reply

API = "/api/model_registry/v1alpha3"
_BASE = {"description", "externalId", "customProperties", "state"}
_MODEL = _BASE | {
    *("owner", "readme", "maturity", "language", "tasks", "provider", "logo", "license"),
    *("licenseLink", "libraryName"),
}
_VERSION = _BASE | {"author"}
_ARTIFACT = _BASE | {
    *("artifactType", "uri", "modelFormatName", "modelFormatVersion", "storageKey"),
    *("storagePath", "serviceAccountName", "modelSourceKind", "modelSourceClass"),
    *("modelSourceGroup", "modelSourceId", "modelSourceName"),
}
_VALUES = {
    "MetadataStringValue": ("string_value", str),
    "MetadataDoubleValue": ("double_value", float),
}
_LONGEST = 255
_REASONS = {400: "Bad Request", 404: "Not Found", 409: "Conflict", 422: "Bad Request"}


class Refusal(Exception):
    """A request that is refused."""

    def __init__(self, status: int, message: str) -> None:
        self.reply: Reply = (status, {"code": _reason(status), "message": message}, {})


def _reason(status: int) -> str:
    return _REASONS.get(status, "Internal Server Error")


class ModelRegistry:
    """Keeps registered models, versions and artifacts by their ids."""

    def __init__(self, ignores_case: bool = False) -> None:
        """`ignores_case`: as MySQL's databases do by default."""
        self.models: dict[str, Object] = {}
        self.versions: dict[str, Object] = {}
        self.artifacts: dict[str, Object] = {}
        self._parents: dict[str, str] = {}
        self._flags = re.IGNORECASE if ignores_case else re.NOFLAG
        self._last = 0

    def answer(  # noqa: C901 - a row a request
        self, method: str, path: str, query: dict[str, str], body: Object
    ) -> Reply:
        """Does what is asked."""
        kind, _, rest = path.strip("/").partition("/")
        own, _, below = rest.partition("/")
        try:
            match (method, kind, bool(own), below):
                case ("GET", "registered_model", False, ""):
                    return 200, self._one(self.models, query["name"], "registered models"), {}
                case ("GET", "registered_models", False, ""):
                    return 200, _page(self.models, query), {}
                case ("POST", "registered_models", False, ""):
                    return 201, self._new(self.models, body, _MODEL | {"name"}), {}
                case ("GET", "model_version", False, ""):
                    inside = _of(self.versions, query["parentResourceId"])
                    return 200, self._one(inside, query["name"], "model versions"), {}
                case ("GET", "registered_models", True, "versions"):
                    inside = _of(self.versions, own)
                    return 200, _page(inside, query), {}
                case ("POST", "model_versions", False, ""):
                    _required(body, "registeredModelId")
                    fields = _VERSION | {"name", "registeredModelId"}
                    scope = str(body["registeredModelId"])
                    return 201, self._new(self.versions, body, fields, scope), {}
                case ("GET", "model_versions", True, ""):
                    return 200, _known(self.versions, own, "model version"), {}
                case ("PATCH", "model_versions", True, ""):
                    item = _known(self.versions, own, "model version")
                    return 200, _changed(item, body, _VERSION), {}
                case ("GET", "model_versions", True, "artifacts"):
                    inside = {k: v for k, v in self.artifacts.items() if self._parents[k] == own}
                    return 200, _page(inside, query), {}
                case ("POST", "model_versions", True, "artifacts"):
                    _known(self.versions, own, "model version")
                    if body.get("artifactType") != "model-artifact":
                        raise Refusal(400, "invalid artifact type: bad request")
                    return 201, self._new(self.artifacts, body, _ARTIFACT | {"name"}, own), {}
                case ("PATCH", "model_artifacts", True, ""):
                    item = _known(self.artifacts, own, "model artifact")
                    return 200, _changed(item, {"state": "UNKNOWN", **body}, _ARTIFACT), {}
        except Refusal as refusal:
            return refusal.reply
        return 404, b"404 page not found", {}

    def _one(self, items: dict[str, Object], name: str, what: str) -> Object:
        """Finds by SQL's LIKE."""
        pattern = "".join({"_": ".", "%": ".*"}.get(mark, re.escape(mark)) for mark in name)
        found = [i for i in items.values() if re.fullmatch(pattern, i["name"], self._flags)]
        if len(found) != 1:
            raise Refusal(404, f"{'multiple' if found else 'no'} {what} found for name={name}")
        return found[0]

    def _new(
        self, items: dict[str, Object], body: Object, fields: set[str], parent: str = ""
    ) -> Object:
        _required(body, "name")
        _check(body, fields)
        if len(f"{parent}:{body['name']}") > _LONGEST:
            raise Refusal(500, "value too long for type character varying(255)")
        for key, item in items.items():
            same = re.fullmatch(re.escape(body["name"]), item["name"], self._flags)
            if same and self._parents[key] == parent:
                raise Refusal(409, f"{body['name']} already exists: conflict")
        self._last += 1
        key = str(self._last)
        self._parents[key] = parent
        items[key] = {"customProperties": {}, "state": "LIVE", **body, "id": key}
        _touch(items[key])
        return dict(items[key])


def _of(versions: dict[str, Object], model: str) -> dict[str, Object]:
    return {key: item for key, item in versions.items() if item["registeredModelId"] == model}


def _required(body: Object, field: str) -> None:
    if not body.get(field):
        raise Refusal(422, f"required field '{field}' is zero value.")


def _check(body: Object, fields: set[str]) -> None:
    for field in body:
        if field not in fields:
            raise Refusal(400, f'json: unknown field "{field}"')
    for name, value in (body.get("customProperties") or {}).items():
        key, kind = _VALUES.get(value.get("metadataType"), ("", str))
        if set(value) != {"metadataType", key} or not isinstance(value[key], kind):
            raise Refusal(400, f"failed to unmarshal MetadataValue {name}")


def _known(items: dict[str, Object], key: str, what: str) -> Object:
    if key not in items:
        raise Refusal(404, f"no {what} found for id {key}: not found")
    return items[key]


def _changed(item: Object, body: Object, fields: set[str]) -> Object:
    """Changes what is given; of the custom properties, all of them."""
    _check(body, fields)
    item |= body
    _touch(item)
    return dict(item)


def _touch(item: Object) -> None:
    item["lastUpdateTimeSinceEpoch"] = str(time.time_ns())


def _page(items: dict[str, Object], query: dict[str, str]) -> Object:
    size = int(query.get("pageSize", 0)) or len(items) or 1
    start = int(query.get("nextPageToken") or 0)
    page: list[Any] = list(items.values())[start : start + size]
    more = str(start + size) if start + size < len(items) else ""
    return {"items": page, "nextPageToken": more, "pageSize": size, "size": len(page)}
