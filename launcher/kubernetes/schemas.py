"""Reads which fields the objects of a kind have, and which versions of it there are."""

from __future__ import annotations

from dataclasses import replace

from kfp_pytorch.launcher.constants import Kind
from kfp_pytorch.launcher.errors import StepError
from kfp_pytorch.launcher.kubernetes.api_errors import Call
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.objects import Object, dig, each


def read_schema(kube: Kube, kind: Kind) -> Object:
    """Reads the OpenAPI v3 schema of a custom resource, which every service account may read.

    Returns the schema; empty where the server publishes none of this kind. Raises ApiError: it
    cannot be read.
    """
    transport = kube.transport
    call = Call("get", kind.plural, kind.group, "", "", transport.credentials.account)
    path = f"/openapi/v3/apis/{kind.group}/{kind.version}"
    document = transport.retried(lambda: transport.json(call, "GET", path))
    schemas = dig(document, "components", "schemas")
    for schema in schemas.values() if isinstance(schemas, dict) else ():
        named = [item.get("kind") for item in each(schema, "x-kubernetes-group-version-kind")]
        if kind.kind in named:
            return dict(schema)
    return {}


def other_versions(kube: Kube, kind: Kind) -> list[str]:
    """Reads in which versions the server has a kind that it does not have in ours.

    Returns their names, such as `v2beta1`; none where it cannot be read.
    """
    call = Call("get", kind.plural, kind.group, "", "", kube.transport.credentials.account)
    try:
        found = kube.transport.json(call, "GET", f"/apis/{kind.group}")
        named = [str(item.get("version")) for item in each(found, "versions")]
        return [name for name in named if kube.serves(replace(kind, version=name))]
    except StepError:
        return []
