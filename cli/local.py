"""`kfp-pytorch local`: the cluster on this machine."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kfp_pytorch.local.lifecycle import ClusterHandle

root_option = click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where claims, logs and runs are kept; default: $KFP_PYTORCH_HOME, else ~/.kfp-pytorch.",
)


@contextlib.contextmanager
def failures_told() -> Iterator[None]:
    """Ends the command with what the local cluster's own functions say when they fail."""
    from kfp_pytorch.local import lifecycle

    try:
        yield
    except (lifecycle.ClusterError, OSError) as error:
        raise click.ClickException(str(error)) from None


def root_or_default(root: Path | None) -> Path:
    """Returns the folder that was given, or the default one, absolute.

    Raises click.ClickException: it is relative to a folder that was deleted, or this user has no
    home.
    """
    from kfp_pytorch.local import lifecycle

    try:
        return root.absolute() if root else lifecycle.default_root()
    except (OSError, RuntimeError) as error:
        raise click.ClickException(
            f"The local cluster's folder is not known: {error}. Set "
            f"{lifecycle.HOME_ENV} or --root to a folder by its whole path."
        ) from None


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group("local")
def local() -> None:
    """The cluster on this machine."""


@local.command("up")
@root_option
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0 for a free one.")
@click.option(
    "--crds",
    type=click.Path(path_type=Path),
    help="A folder with CustomResourceDefinitions to validate objects by.",
)
@json_option
def up(root: Path | None, port: int, crds: Path | None, as_json: bool) -> None:
    """Start a cluster that stays until `local down`."""
    from kfp_pytorch.local import lifecycle

    folder = root_or_default(root)
    with failures_told():
        started = lifecycle.start_detached(folder, port=port, crds=crds and crds.absolute())
    _print(started, as_json=as_json)


@local.command("status")
@root_option
@json_option
def status(root: Path | None, as_json: bool) -> None:
    """Say whether a cluster is up, and where; exit code 1 when none is."""
    from kfp_pytorch.local import lifecycle

    folder = root_or_default(root)
    handle = lifecycle.status(folder)
    if handle is None:
        none = json.dumps({"up": False}) if as_json else f"No cluster is up on {folder}."
        click.echo(none)
        raise SystemExit(1)
    _print(handle, as_json=as_json)


@local.command("down")
@root_option
@json_option
def down(root: Path | None, as_json: bool) -> None:
    """Stop the cluster and all of its pods."""
    from kfp_pytorch.local import lifecycle

    folder = root_or_default(root)
    with failures_told():
        stopped = lifecycle.stop(folder)
    said = "The cluster is down." if stopped else f"No cluster was up on {folder}."
    click.echo(json.dumps({"up": False, "stopped": stopped}) if as_json else said)


def _print(handle: ClusterHandle, *, as_json: bool) -> None:
    if as_json:
        where = {"url": handle.url, "pid": handle.pid, "kubeconfig": str(handle.kubeconfig)}
        click.echo(json.dumps({"up": True, **where}))
        return
    click.echo(f"The cluster is up at {handle.url} (process {handle.pid}).")
    click.echo(f"export KUBECONFIG={shlex.quote(str(handle.kubeconfig))}")
