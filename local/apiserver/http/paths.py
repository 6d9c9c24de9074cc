"""What a URL of the API names."""

from __future__ import annotations

from dataclasses import dataclass

from kfp_pytorch.launcher.constants import Kind
from kfp_pytorch.local.apiserver.registry import NAMESPACE, Registry, Resource


@dataclass(frozen=True)
class Target:
    """What a request is about."""

    resource: Resource  # the type
    namespace: str | None = None  # the namespace; None for all, or for a type that lives in none
    name: str = ""  # the object's name; empty for the whole collection
    subresource: str = ""  # such as `status` or `log`, or empty

    @property
    def key(self) -> tuple[Kind, str, str]:
        """The kind, namespace and name of the object, as `Api` takes them."""
        return self.resource.kind, self.namespace or "", self.name


def target(registry: Registry, path: str) -> Target | None:
    """What a path names, or None where the server knows no such path."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        return _target(registry, "", parts[1], parts[2:])
    if parts[0] == "apis" and len(parts) > 3:
        return _target(registry, parts[1], parts[2], parts[3:])
    return None


def _target(registry: Registry, group: str, version: str, parts: list[str]) -> Target | None:
    namespace_itself = len(parts) < 3 or parts[2] in ("status", "finalize")
    if not group and parts[0] == "namespaces" and namespace_itself:
        return _within(registry.of(NAMESPACE), None, parts[1:]) if version == "v1" else None
    namespace: str | None = None
    if parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    resource = registry.at(group, version, parts[0])
    if resource is None or (namespace is not None and not resource.namespaced):
        return None
    if len(parts) > 1 and resource.namespaced and namespace is None:
        return None
    return _within(resource, namespace, parts[1:])


def _within(resource: Resource, namespace: str | None, rest: list[str]) -> Target | None:
    if len(rest) > 2:
        return None
    name, subresource = (*rest, "", "")[:2]
    return Target(resource, namespace, name, subresource)
