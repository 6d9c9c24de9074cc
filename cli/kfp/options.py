"""What the commands for KFP have in common: where KFP is, who asks, and JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from kfp_pytorch.client import Client

HOST_ENV = "KF_PIPELINES_ENDPOINT"
_IN_A_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
F = TypeVar("F", bound=Callable[..., Any])
_FILE = click.Path(dir_okay=False)
_NAMES = ("host", "namespace", "token_file", "cookie_file", "ca_file", "context", "ui_host")

_OPTIONS = [
    click.option(
        "--host",
        default="",
        metavar="URL",
        help=f"KFP, such as https://kubeflow.example.com/pipeline; default: ${HOST_ENV}, else the "
        "service ml-pipeline of the cluster that this is in, or of the kubeconfig.",
    ),
    click.option("-n", "--namespace", default="", help="Your namespace, where KFP has many users."),
    click.option(
        "--token-file",
        default="",
        type=_FILE,
        help="A file with a bearer token, read again for each request; or $KFP_PYTORCH_TOKEN.",
    ),
    click.option(
        "--cookie-file",
        default="",
        type=_FILE,
        help="A file with a session's cookies, NAME=VALUE; or $KFP_PYTORCH_COOKIE.",
    ),
    click.option(
        "--ca-file", default="", type=_FILE, help="The certificate authorities to trust, as PEM."
    ),
    click.option("--context", default="", help="A context of the kubeconfig."),
    click.option(
        "--ui-host", default="", metavar="URL", help="KFP's UI, for links; default: --host."
    ),
]

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def endpoint_options(command: F) -> F:
    """Adds the options that say where KFP is."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def endpoint_of(options: dict[str, Any]) -> dict[str, str]:
    """Takes the options that say where KFP is out of those of a command."""
    return {name: str(options.pop(name) or "") for name in _NAMES}


def connect(endpoint: dict[str, str]) -> Client:
    """Connects to KFP. Raises click.ClickException."""
    from kfp_pytorch.client import Client

    return Client(**endpoint)


def is_named(endpoint: dict[str, str]) -> bool:
    """Whether something says where KFP is, besides the kubeconfig's current context."""
    return bool(
        endpoint["host"] or endpoint["context"] or os.environ.get(HOST_ENV) or _IN_A_POD.exists()
    )


def as_json(found: Any) -> Any:
    """A result as JSON takes it: of dataclasses the fields, times in UTC."""
    if dataclasses.is_dataclass(found) and not isinstance(found, type):
        shown = [field.name for field in dataclasses.fields(found) if field.repr]
        return {name: as_json(getattr(found, name)) for name in shown}
    if isinstance(found, datetime):
        return found.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(found, dict):
        return {name: as_json(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [as_json(value) for value in found]
    return found


def print_json(found: Any) -> None:
    """Prints a result as one line of JSON."""
    click.echo(json.dumps(as_json(found)))
