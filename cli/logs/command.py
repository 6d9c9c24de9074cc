"""The command itself: what is asked for, and of which run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kfp_pytorch.cli.local import root_option, root_or_default

if TYPE_CHECKING:
    from kfp_pytorch.cli.logs.source import Source


@click.command("logs", short_help="Show the logs of a run's steps and ranks.")
@click.argument("run", default="")
@click.option(
    "--step",
    default="",
    metavar="STEP",
    help="A step by its task's name; of a loop's iterations one, as STEP:NUMBER or by an argument "
    "that only it has, as STEP:lr=0.1.",
)
@click.option(
    "--rank",
    type=click.IntRange(min=0),
    help="What this rank of the step's job has written: the log of its pod.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on until what is shown has ended.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The jobs are on the cluster of this file; with -n alone, of $KUBECONFIG, else of "
    "~/.kube/config.",
)
@click.option("-n", "--namespace", default="", help="The jobs are in this namespace of a cluster.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, at the end.")
@root_option
def logs(
    run: str,
    step: str,
    rank: int | None,
    follow: bool,
    kubeconfig: Path | None,
    namespace: str,
    as_json: bool,
    root: Path | None,
) -> None:
    """Show the logs of RUN, which may be running or have ended.

    On this machine RUN is the name, id or folder of a run, or `latest`. On a cluster it is the
    run's id or the job's name; a job's pods have logs there while they exist. Of a name or id the
    beginning is enough. Without RUN this lists the runs.

    Without options this lists, on stderr, what has logs, and shows that of the failing step, else
    of the first node of each job.
    """
    from kfp_pytorch.cli.logs import cluster, local, show
    from kfp_pytorch.launcher.errors import StepError

    if not run and (step or rank is not None or follow):
        raise click.UsageError("Name a RUN, or `latest`; without one and options, runs are listed.")
    folder = root_or_default(root)
    try:
        remote = bool(kubeconfig or namespace)
        kube = cluster.connect(kubeconfig, namespace, follow=follow) if remote else None
        if not run:
            rows = cluster.listing(kube) if kube else local.listing(folder)
            (show.runs_as_json if as_json else show.runs)(rows)
            return
        found: Source = cluster.find(kube, run, folder) if kube else local.find(run, folder)
        (show.show_as_json if as_json else show.show)(found, step, rank, follow=follow)
    except StepError as error:
        raise click.ClickException(error.message) from None
