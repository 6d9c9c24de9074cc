"""`kfp-pytorch run`: a pipeline's steps on this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from kfp_pytorch.cli.local import root_option, root_or_default
from kfp_pytorch.cli.runs.signals import Interrupted, interruptible


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line."""

    root: Path
    pipeline: str
    locally: bool
    kubeconfig: Path | None
    given: tuple[str, ...]
    keep: bool
    as_json: bool
    resume: bool


@click.command("run", short_help="Run a pipeline's steps on this machine.")
@click.argument("pipeline")
@click.option(
    "--local", "locally", is_flag=True, help="The steps and their jobs run on this machine."
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The steps run here, and their jobs on the cluster of this file.",
)
@click.option(
    "-p",
    "--parameter",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter; may be repeated. `kfp-pytorch params PIPELINE` lists them.",
)
@click.option("--keep", is_flag=True, help="Leave the local cluster and the endpoint up.")
@click.option("--json", "as_json", is_flag=True, help="End with the summary as one JSON object.")
@click.option(
    "--resume",
    is_flag=True,
    help="Resume the pipeline's last run, from its checkpoints and with its parameters; those "
    "given with -p replace the ones of that run.",
)
@root_option
def run(root: Path | None, **options: Any) -> None:
    """Run PIPELINE: a name that comes with kfp-pytorch, a compiled YAML, or FILE.py:FUNCTION.

    With --json, everything but the summary goes to stderr, and the summary is the last line of
    stdout.
    """
    request = Request(root_or_default(root), **options)
    with _ended_as_json(request), interruptible():
        if request.locally == bool(request.kubeconfig):
            raise click.UsageError(
                "Say where: --local for this machine, or --kubeconfig FILE. To run the whole "
                "pipeline on a Kubeflow cluster, compile it and upload the YAML."
            )
        result = _execute(request)
    if result["status"] != "succeeded":
        raise SystemExit(1)


@contextmanager
def _ended_as_json(request: Request) -> Iterator[None]:
    """Prints why a run ended early, as JSON too when that was asked for."""
    try:
        yield
    except click.ClickException as error:
        if request.as_json:
            _print_json(request, "failed", error.format_message())
        raise
    except Interrupted as interrupted:
        hint = ""
        if interrupted.summary or request.resume:
            hint = " The same command with --resume resumes from the last checkpoint."
        click.echo(f"Ended by {interrupted}; nothing is left running.{hint}", err=True)
        if request.as_json and interrupted.summary:
            click.echo(json.dumps(interrupted.summary))
        elif request.as_json:
            _print_json(request, "terminated", f"ended by {interrupted}")
        raise SystemExit(interrupted.exit_code) from None


def _print_json(request: Request, status: str, error: str) -> None:
    from kfp_pytorch.cli.runs import summary

    click.echo(json.dumps(summary.empty(request.pipeline, status, error)))


def _execute(request: Request) -> dict[str, Any]:
    """Checks everything that can be checked, runs, and prints the summary; returns it."""
    from kfp_pytorch.cli.packages import checks, find, local_features, parameters
    from kfp_pytorch.cli.runs import clusters, run_folder, session, summary
    from kfp_pytorch.cli.runs.events import TerminalProgress

    began = time.monotonic()
    package = find.find_one(request.pipeline)
    arguments = parameters.typed(package, request.given)
    if request.resume:
        wanted = run_folder.run_to_resume(request.root / "runs", package.pipeline_name, arguments)
    else:
        wanted = run_folder.new_run(package.pipeline_name, arguments)
    parameters.require(package, wanted.arguments)
    checks.check(package, wanted.arguments)
    local_features.check(package)
    progress = TerminalProgress(err=request.as_json)
    cluster = clusters.cluster(request.root, request.kubeconfig, wanted.id, keep=request.keep)
    # An endpoint on a cluster elsewhere stays.
    kept = request.keep or bool(request.kubeconfig)
    with cluster as target:
        result = session.run(package, wanted, target, progress)
        took = time.monotonic() - began
        click.echo("\n" + summary.text(result, took, kept=kept), err=request.as_json)
        if result["error"]:
            click.echo(f"\nError: {summary.headline(result['error'])}", err=True)
    if request.keep and not request.kubeconfig:
        click.echo("The cluster stays up; `kfp-pytorch local down` ends it.", err=request.as_json)
    if request.as_json:
        click.echo(json.dumps(result))
    return result
