"""Discovery, which kubectl reads first: versions, groups, resources, OpenAPI."""

from __future__ import annotations

from collections.abc import Iterator

from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.http.reviews import REVIEWS
from kfp_pytorch.local.apiserver.registry import Registry, Resource

VERSION = {
    "major": "1",
    "minor": "32",
    "gitVersion": "v1.32.0",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}

_REVIEW_GROUPS = tuple(dict.fromkeys(group for group, _ in REVIEWS))
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def api_versions() -> Object:
    """The answer to `/api`."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def groups(registry: Registry) -> Object:
    """The answer to `/apis`."""
    names = sorted({resource.kind.group for resource in registry} - {""})
    found = [group(registry, name) for name in (*names, *_REVIEW_GROUPS)]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}


def group(registry: Registry, name: str) -> Object | None:
    """The answer to `/apis/GROUP`, or None where there is no such group."""
    kinds = [resource.kind for resource in registry if resource.kind.group == name]
    names = list(dict.fromkeys(kind.version for kind in kinds))
    if name in _REVIEW_GROUPS:
        names = ["v1"]
    if not names or not name:
        return None
    versions = [{"groupVersion": f"{name}/{item}", "version": item} for item in names]
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": name,
        "versions": versions,
        "preferredVersion": versions[0],
    }


def resources(registry: Registry, group: str, version: str) -> Object | None:
    """The answer to `/api/v1` and `/apis/GROUP/VERSION`, or None where there is no such."""
    found = [entry for resource in _of(registry, group, version) for entry in _entries(resource)]
    if version == "v1":
        found += [_review_entry(*names) for names in REVIEWS if names[0] == group]
    if not found:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": found,
    }


def _of(registry: Registry, group: str, version: str) -> Iterator[Resource]:
    for resource in registry:
        if (resource.kind.group, resource.kind.version) == (group, version):
            yield resource


def _entries(resource: Resource) -> Iterator[Object]:
    kind = resource.kind
    entry: Object = {
        "name": kind.plural,
        "singularName": kind.kind.lower(),
        "namespaced": resource.namespaced,
        "kind": kind.kind,
    }
    whole = {**entry, "verbs": _VERBS}
    if resource.short_names:
        whole["shortNames"] = list(resource.short_names)
    if resource.categories:
        whole["categories"] = list(resource.categories)
    yield whole
    subresources = {"status": ["get", "patch", "update"]} if resource.status else {}
    if kind.kind == "Pod":
        subresources["log"] = ["get"]
    for name, verbs in subresources.items():
        part = {"name": f"{kind.plural}/{name}", "singularName": "", "verbs": verbs}
        yield {**entry, **part}


def _review_entry(group: str, plural: str) -> Object:
    kind, _ = REVIEWS[group, plural]
    entry = {"name": plural, "singularName": kind.lower(), "namespaced": False, "kind": kind}
    return {**entry, "verbs": ["create"]}


def openapi_root(registry: Registry) -> Object:
    """The answer to `/openapi/v3`: where the document of each group and version is."""
    versions = dict.fromkeys(resource.kind.api_version for resource in registry)
    found = [f"apis/{item}" if "/" in item else f"api/{item}" for item in versions]
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in found}}


def openapi(registry: Registry, group: str, version: str) -> Object:
    """The part of the document that kubectl needs: that writes take `fieldValidation`."""
    paths: Object = {}
    schemas: Object = {}
    prefix = f"/apis/{group}/{version}" if group else f"/api/{version}"
    for resource in _of(registry, group, version):
        kind = resource.kind
        identity = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        where = f"{prefix}/namespaces/{{namespace}}" if resource.namespaced else prefix
        operation = {
            "parameters": [{"name": "fieldValidation", "in": "query"}],
            "x-kubernetes-group-version-kind": identity,
            "responses": {"200": {"description": "OK"}},
        }
        paths[f"{where}/{kind.plural}/{{name}}"] = {"patch": operation}
        name = ".".join([*reversed(kind.group.split(".")), kind.version, kind.kind]).lstrip(".")
        schema = dict(resource.schema or {"type": "object"})
        schemas[name] = {**schema, "x-kubernetes-group-version-kind": [identity]}
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": VERSION["gitVersion"]},
        "paths": paths,
        "components": {"schemas": schemas},
    }
