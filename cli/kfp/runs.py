"""`kfp-pytorch runs`: the runs on a KFP endpoint."""

from __future__ import annotations

from typing import Any

import click

from kfp_pytorch.cli.kfp.options import (
    connect,
    endpoint_of,
    endpoint_options,
    json_option,
    print_json,
)


@click.group("runs")
def runs() -> None:
    """The runs on KFP."""


@runs.command("list", short_help="List runs, the newest first.")
@click.option("--experiment", default="", help="Those of this experiment.")
@click.option("--schedule", default="", help="Those that this schedule has started.")
@click.option(
    "--limit", type=click.IntRange(min=0), default=20, show_default=True, help="0 for all."
)
@json_option
@endpoint_options
def list_runs(experiment: str, schedule: str, limit: int, **options: Any) -> None:
    """List runs, the newest first."""
    as_json = options.pop("as_json")
    client = connect(endpoint_of(options))
    found = client.runs(most=limit, experiment=experiment, schedule=schedule)
    if as_json:
        print_json({"runs": found})
        return
    from kfp_pytorch.cli.kfp import show

    click.echo(show.runs(found) if found else "There are no runs.")


@runs.command("show", short_help="Show a run, its steps, and why it failed.")
@click.argument("run")
@click.option("--wait", is_flag=True, help="Follow it to its end; exit code 1 if it fails.")
@json_option
@endpoint_options
def show_run(run: str, wait: bool, **options: Any) -> None:
    """Show a run, its steps, and why it failed.

    RUN is its id, the beginning of one, its name, or `latest`.
    """
    from kfp_pytorch.cli.kfp import show
    from kfp_pytorch.cli.kfp.run import follow

    as_json = options.pop("as_json")
    client = connect(endpoint_of(options))
    found = client.get(run)
    if wait:
        follow(client, found, as_json=as_json)
    elif as_json:
        print_json(found)
    else:
        click.echo(show.run(found))


@runs.command("terminate")
@click.argument("run")
@json_option
@endpoint_options
def terminate(run: str, **options: Any) -> None:
    """End a run that goes on; its steps delete their jobs.

    RUN is its id, the beginning of one, its name, or `latest`.
    """
    _act("terminate", run, "is being terminated", options)


@runs.command("retry")
@click.argument("run")
@json_option
@endpoint_options
def retry(run: str, **options: Any) -> None:
    """Run again what failed of a run; steps that succeeded are kept.

    RUN is its id, the beginning of one, its name, or `latest`.
    """
    _act("retry", run, "runs again what failed", options)


@runs.command("delete")
@click.argument("run")
@json_option
@endpoint_options
def delete(run: str, **options: Any) -> None:
    """Delete a run, and end what of it goes on: its Workflow, pods and jobs.

    RUN is its id, the beginning of one, its name, or `latest`.
    """
    _act("delete", run, "is deleted", options)


def _act(verb: str, run: str, done: str, options: dict[str, Any]) -> None:
    as_json = options.pop("as_json")
    client = connect(endpoint_of(options))
    run_id = getattr(client, verb)(run)
    if as_json:
        print_json({"run_id": run_id, "done": verb})
    else:
        click.echo(f"Run {run_id} {done}.")
