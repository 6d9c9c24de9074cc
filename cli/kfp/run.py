"""`kfp-pytorch run` on a KFP endpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from kfp_pytorch.cli.kfp.options import connect, print_json

if TYPE_CHECKING:
    from kfp_pytorch.client import Client, Run


@dataclass(frozen=True)
class Wanted:
    """A run that is asked for on the command line."""

    pipeline: str
    arguments: dict[str, Any]
    name: str = ""
    experiment: str = ""
    pipeline_root: str = ""
    service_account: str = ""


def run(endpoint: dict[str, str], wanted: Wanted, *, wait: bool, as_json: bool) -> None:
    """Starts a run; with `wait` follows it, and ends as it does.

    Raises click.ClickException; SystemExit: the run failed, or a signal ended the waiting.
    """
    client = connect(endpoint)
    started = client.run(
        wanted.pipeline,
        wanted.arguments,
        name=wanted.name,
        experiment=wanted.experiment,
        pipeline_root=wanted.pipeline_root,
        service_account=wanted.service_account,
    )
    click.echo(f"Run {started.run_id} has started.", err=as_json)
    if started.url:
        click.echo(started.url, err=as_json)
    if not wait:
        if as_json:
            print_json(started)
        return
    follow(client, started, as_json=as_json)


def follow(client: Client, run: Run, *, as_json: bool) -> None:
    """Follows a run to its end, and shows how it ended.

    Raises SystemExit: it did not succeed, or a signal ended the waiting.
    """
    from kfp_pytorch.cli.kfp import show
    from kfp_pytorch.cli.kfp.progress import Progress
    from kfp_pytorch.cli.runs.signals import Interrupted, interruptible

    progress = Progress(err=as_json)
    seen = [run]

    def tell(now: Run) -> None:
        seen.append(now)
        progress.tell(now)

    try:
        with interruptible():
            ended = client.wait(run, tell=tell)
    except Interrupted as interrupted:
        last = seen[-1]
        click.echo(
            f"No longer followed; the run goes on. `kfp-pytorch runs show {run.run_id} --wait` "
            f"follows it again, `kfp-pytorch runs terminate {run.run_id}` ends it.",
            err=True,
        )
        if as_json:
            print_json(last)
        raise SystemExit(interrupted.exit_code) from None
    # A local run's last part is how long it took, of which KFP's clock knows more.
    ended = replace(ended, url=ended.url or run.url)
    click.echo(f"\n{show.run(ended)}", err=as_json)
    if as_json:
        print_json(ended)
    if ended.status != "succeeded":
        raise SystemExit(1)
