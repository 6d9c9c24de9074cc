"""The resource types that the server has."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kfp_pytorch.launcher.constants import Kind
from kfp_pytorch.local.apiserver.errors import Object, no_such_resource

NAMESPACE = Kind("", "v1", "Namespace", "namespaces")
NODE = Kind("", "v1", "Node", "nodes")
SECRET = Kind("", "v1", "Secret", "secrets")
SERVICE_ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts")
RESOURCE_QUOTA = Kind("", "v1", "ResourceQuota", "resourcequotas")
STORAGE_CLASS = Kind("storage.k8s.io", "v1", "StorageClass", "storageclasses")
ROLE = Kind("rbac.authorization.k8s.io", "v1", "Role", "roles")
CLUSTER_ROLE = Kind("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles")
ROLE_BINDING = Kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
CLUSTER_ROLE_BINDING = Kind(
    "rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings"
)
RUNTIME_CLASS = Kind("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses")
PRIORITY_CLASS = Kind("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses")
AUTOSCALER = Kind("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
CLUSTER_SERVING_RUNTIME = Kind(
    "serving.kserve.io", "v1alpha1", "ClusterServingRuntime", "clusterservingruntimes"
)


@dataclass(frozen=True)
class Column:
    """One column of what `kubectl get` prints."""

    name: str  # the heading
    path: str  # the JSONPath of the value; of native types any cell of `native.yaml`
    type: str = "string"  # `string`, `integer`, `boolean` or `date` (printed as an age)
    priority: int = 0  # above 0, only `-o wide` prints it
    default: str | int = ""  # of native types: what stands where nothing is found


# Compared and hashed by identity: what is made of a schema is kept for the type.
@dataclass(frozen=True, eq=False)
class Resource:
    """A resource type and how the server treats it.

    `custom`: a CustomResourceDefinition made it. Then an update needs a resourceVersion, there is
    no strategic merge patch, and a deletion returns a Status.
    """

    kind: Kind  # its names in the API
    namespaced: bool = True  # whether its objects live in namespaces
    custom: bool = False
    status: bool = False  # whether the status is a subresource
    generation: bool = False  # whether metadata.generation counts the changes of the spec
    short_names: Sequence[str] = ()  # other names for the plural that kubectl takes
    categories: Sequence[str] = ()  # the groups of kubectl that it belongs to, such as `all`
    selectable: Sequence[str] = ()  # the fields of field selectors, besides name and namespace
    columns: Sequence[Column] = ()  # of custom resources besides the name; empty for the age
    schema: Object | None = None  # OpenAPI v3; None where nothing is checked

    @property
    def list_kind(self) -> str:
        """The kind of a list of these objects."""
        return f"{self.kind.kind}List"


def _read(name: str) -> Any:
    # Imported late: what asks for a kind alone starts without it.
    import yaml

    # libyaml's loader, where it is there, takes a tenth of the time.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(Path(__file__).with_name(name).read_text(), loader)  # noqa: S506 (safe loaders)


@cache
def _own() -> list[Resource]:
    """The types of a server that is given no CustomResourceDefinitions."""
    native = [
        Resource(
            Kind(*given.pop("kind")),
            columns=[_native_column(*each) for each in given.pop("columns", {}).items()],
            **given,
        )
        for given in _read("native.yaml")
    ]
    files = ("job_definitions.yaml", "definitions.yaml")
    definitions = itertools.chain.from_iterable(_read(file)["items"] for file in files)
    return [*native, *itertools.chain.from_iterable(map(_custom, definitions))]


def _native_column(heading: str, cell: str | list[Any]) -> Column:
    path, default = cell if isinstance(cell, list) else (cell, "")
    wide = heading.startswith("+")
    return Column(heading.lstrip("+"), path, priority=int(wide), default=default)


class Registry:
    """The resource types of one server; each definition adds a type or takes the place of one."""

    def __init__(self, definitions: Iterable[Object] = ()) -> None:
        given = itertools.chain.from_iterable(map(_custom, definitions))
        self._resources = {resource.kind: resource for resource in (*_own(), *given)}
        self._paths = {
            (kind.group, kind.version, kind.plural): resource
            for kind, resource in self._resources.items()
        }

    def __iter__(self) -> Iterator[Resource]:
        return iter(self._resources.values())

    def remove(self, kind: Kind) -> None:
        """Takes a type away, as a server has none whose definition was not installed."""
        del self._resources[kind]
        del self._paths[kind.group, kind.version, kind.plural]

    def of(self, kind: Kind) -> Resource:
        """The type of a kind. Raises ApiError: 404 when the server has no such type."""
        found = self._resources.get(kind)
        if found is None:
            raise no_such_resource()
        return found

    def at(self, group: str, version: str, plural: str) -> Resource | None:
        """The type that a URL names, or None."""
        return self._paths.get((group, version, plural))


def _custom(definition: Object) -> Iterator[Resource]:
    """The types of a CustomResourceDefinition, one a served version. Raises ValueError."""
    spec = definition.get("spec") or {}
    if definition.get("kind") != "CustomResourceDefinition" or "versions" not in spec:
        raise ValueError(
            f"not a CustomResourceDefinition: kind is {definition.get('kind')!r}; "
            "give one definition a JSON file"
        )
    names = spec["names"]
    for version in spec["versions"]:
        if not version.get("served", True):
            continue
        yield Resource(
            Kind(spec["group"], version["name"], names["kind"], names["plural"]),
            namespaced=spec.get("scope", "Namespaced") == "Namespaced",
            custom=True,
            status="status" in (version.get("subresources") or {}),
            generation=True,
            short_names=names.get("shortNames") or (),
            categories=names.get("categories") or (),
            columns=[
                Column(c["name"], c["jsonPath"], c.get("type", "string"), int(c.get("priority", 0)))
                for c in version.get("additionalPrinterColumns") or []
            ],
            schema=(version.get("schema") or {}).get("openAPIV3Schema"),
        )


def read_definitions(folder: Path) -> list[Object]:
    """The CustomResourceDefinitions of a folder, one a JSON file. Raises ValueError."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise ValueError(f"no CustomResourceDefinition: {folder} holds no file *.json")
    found = []
    for path in paths:
        try:
            definition = json.loads(path.read_text())
            list(_custom(definition))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            words = f"it has no {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{path} is no CustomResourceDefinition as JSON: {words}") from None
        found.append(definition)
    return found
