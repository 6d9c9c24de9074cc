"""MLflow's server, as far as a model is registered to it: it answers as 3.17 does."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from harness.registries.serving import Object, Reply

API = "/api/2.0/mlflow"
_CLAUSE = re.compile(r"(?:name|attributes\.run_name|tags\.`([^`]+)`) = '([^']*)'")
_FIELDS = {
    "/registered-models/create": {"name", "tags", "description"},
    "/registered-models/alias": {"name", "alias", "version"},
    "/model-versions/create": {"name", "source", "run_id", "tags", "description"},
    "/model-versions/set-tag": {"name", "version", "key", "value"},
    "/model-versions/update": {"name", "version", "description"},
    "/model-versions/delete": {"name", "version"},
    "/experiments/search": {"max_results"},
    "/runs/search": {"experiment_ids", "filter", "order_by", "max_results"},
}


class Refusal(Exception):
    """A request that is refused."""

    def __init__(self, status: int, code: str, message: str) -> None:
        self.reply: Reply = (status, {"error_code": code, "message": message}, {})


def _invalid(message: str) -> Refusal:
    return Refusal(400, "INVALID_PARAMETER_VALUE", message)


class Mlflow:
    """Keeps registered models with their versions.

    Attributes:
        runs: The id of each MLflow run by its name.
    """

    def __init__(self) -> None:
        self.models: dict[str, dict[str, Object]] = {}
        self.aliases: dict[str, dict[str, str]] = {}
        self.runs: dict[str, str] = {}
        self._last: dict[str, int] = {}

    def answer(  # noqa: C901 - a row a request
        self, method: str, path: str, query: dict[str, str], body: Object
    ) -> Reply:
        """Does what is asked."""
        try:
            for field in body:
                if field not in _FIELDS.get(path, body):
                    raise Refusal(400, "BAD_REQUEST", f"no field named {field}")
            match (method, path):
                case ("GET", "/registered-models/get"):
                    return 200, {"registered_model": self._get_model(query["name"])}, {}
                case ("POST", "/registered-models/create"):
                    return self._create_model(body["name"])
                case ("GET", "/model-versions/search"):
                    return 200, self._search(query["filter"]), {}
                case ("POST", "/model-versions/create"):
                    return 200, {"model_version": self._create_version(body)}, {}
                case ("POST", "/experiments/search"):
                    return 200, {"experiments": [{"experiment_id": "0"}]}, {}
                case ("POST", "/runs/search"):
                    return 200, self._search_runs(body), {}
                case (_, "/registered-models/alias" | "/model-versions/set-tag"):
                    self._set(path, body)
                    return 200, {}, {}
                case ("PATCH", "/model-versions/update"):
                    self._version(body)["description"] = body["description"]
                    return 200, {"model_version": self._version(body)}, {}
                case ("DELETE", "/model-versions/delete"):
                    self._version(body)
                    del self.models[body["name"]][body["version"]]
                    return 200, {}, {}
        except Refusal as refusal:
            return refusal.reply
        return 404, b"<!doctype html><title>404 Not Found</title>", {}

    def tags(self, name: str, number: str) -> dict[str, str]:
        """The tags of a version."""
        return {tag["key"]: tag["value"] for tag in self.models[name][number]["tags"]}

    def _model(self, name: str) -> dict[str, Object]:
        if name not in self.models:
            message = f"Registered Model with name={name} not found"
            raise Refusal(404, "RESOURCE_DOES_NOT_EXIST", message)
        return self.models[name]

    def _get_model(self, name: str) -> Object:
        self._model(name)
        held = self.aliases.get(name, {})
        return {"name": name, "aliases": [{"alias": a, "version": v} for a, v in held.items()]}

    def _version(self, body: Object) -> Object:
        versions = self._model(body["name"])
        if body["version"] not in versions:
            raise Refusal(404, "RESOURCE_DOES_NOT_EXIST", "Model Version not found")
        return versions[body["version"]]

    def _create_model(self, name: str) -> Reply:
        if not name.strip() or "/" in name or ":" in name:
            raise _invalid("Names cannot contain '/' or ':'.")
        if name in self.models:
            message = f"Registered Model (name={name}) already exists."
            raise Refusal(400, "RESOURCE_ALREADY_EXISTS", message)
        self.models[name] = {}
        return 200, {"registered_model": {"name": name}}, {}

    def _create_version(self, body: Object) -> Object:
        source = unquote(str(body["source"]))
        parts = urlsplit(source)
        if not (parts.scheme and parts.netloc and parts.path.strip("/")) or ".." in source:
            raise _invalid(f"Invalid model version source: '{source}'")
        versions = self._model(body["name"])
        self._last[body["name"]] = self._last.get(body["name"], 0) + 1
        number = str(self._last[body["name"]])
        given = {"run_id": "", "description": "", "tags": []} | body
        versions[number] = {**given, "version": number}
        return dict(versions[number])

    def _search(self, where: str) -> Object:
        clauses = [_CLAUSE.fullmatch(clause) for clause in where.split(" and ")]
        if None in clauses:
            raise _invalid(f"Invalid filter {where!r}")
        found = [
            version
            for name, versions in self.models.items()
            for version in versions.values()
            if all(
                (self.tags(name, version["version"]).get(c[1], "") if c[1] else name) == c[2]
                for c in clauses
                if c
            )
        ]
        return {"model_versions": found} if found else {}

    def _search_runs(self, body: Object) -> Object:
        match = _CLAUSE.fullmatch(body["filter"])
        run = self.runs.get(match[2], "") if match and body["experiment_ids"] else ""
        return {"runs": [{"info": {"run_id": run}}]} if run else {}

    def _set(self, path: str, body: Object) -> None:
        version = self._version(body)
        if path.endswith("set-tag"):
            kept = [tag for tag in version["tags"] if tag["key"] != body["key"]]
            version["tags"] = [*kept, {"key": body["key"], "value": body["value"]}]
            return
        self.aliases.setdefault(body["name"], {})[body["alias"]] = body["version"]
