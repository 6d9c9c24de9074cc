"""The pods that a job or a service will have, checked as the API server will check them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import click

from kfp_pytorch.launcher.constants import POD, Kind
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.kserve.names import CONTAINER
from kfp_pytorch.local.apiserver.errors import ApiError
from kfp_pytorch.local.apiserver.registry import Registry
from kfp_pytorch.local.apiserver.validation import admission
from kfp_pytorch.local.apiserver.validation.models import fields

_ANY = "x"
_IN_TEMPLATE = re.compile(r"^spec\.(?:\w+\.)+?template\.")


def check(template: dict[str, Any], what: str, look_at: str) -> None:
    """Checks a pod template.

    `what`: the pods, for the message; `look_at`: the inputs that they are made of. Raises
    InputError: the API server would refuse them.
    """
    kind = Registry([]).of(POD)
    metadata = {**template["metadata"], "name": _ANY, "namespace": _ANY}
    pod = {"kind": POD.kind, **template, "metadata": metadata}
    try:
        admission.check_new(kind, admission.new_object(kind, pod, datetime.now(UTC)))
    except ApiError as error:
        raise InputError(
            f"The {what} would be refused; look at {look_at}: {error.message}"
        ) from None


def warn_of_unknown_fields(kind: Kind, made: dict[str, Any], task: str) -> None:
    """Warns of fields that the kind does not have: a cluster may be newer, so it is no error."""
    paths = admission.unknown_fields(Registry([]).of(kind), made)
    # The roles of a job have the same.
    unknown = dict.fromkeys(_IN_TEMPLATE.sub("", path) for path in paths)
    if unknown:
        click.echo(
            f"Warning: task {task}: the kind {kind.kind} has no field {', '.join(unknown)}. Look "
            "for a typing error, unless your cluster is newer than this check.",
            err=True,
        )


def of_component(component: dict[str, Any]) -> dict[str, Any]:
    """Returns what KServe makes a component's pods of, as far as the runtime does not say it."""
    spec = {name: component[name] for name in fields("V1PodSpec") if name in component}
    model = component.get("model", {})
    if model:
        own = {name: model[name] for name in fields("V1Container") if name in model}
        spec["containers"] = [{"name": CONTAINER, "image": _ANY, **own}]
        # A volume may be the runtime's.
        known = {volume.get("name") for volume in spec.get("volumes", [])}
        mounted = {mount.get("name") for mount in own.get("volumeMounts", [])}
        others = [{"name": name, "emptyDir": {}} for name in sorted(mounted - known)]
        spec["volumes"] = [*spec.get("volumes", []), *others]
    return {"metadata": {}, "spec": spec}
