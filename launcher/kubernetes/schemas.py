"""Reads which fields the objects of a kind have."""

from __future__ import annotations

from kfp_pytorch.launcher.constants import Kind
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
