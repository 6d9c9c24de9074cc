"""`kfp-pytorch params`: what a pipeline can be given."""

from __future__ import annotations

import json
import shutil
import sys

import click


@click.command("params")
@click.argument("pipeline")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object, with whole defaults.")
def params(pipeline: str, as_json: bool) -> None:
    """List a pipeline's parameters.

    Each with its type, default and description, those without a default first. PIPELINE is named
    as for `run`. On a terminal lines are wrapped; elsewhere each parameter is one line.
    """
    from kfp_pytorch.client.packages import find, parameters

    package = find.find_one(pipeline)
    if as_json:
        found = {"pipeline": package.pipeline_name, "parameters": parameters.listed(package)}
        click.echo(json.dumps(found))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    click.echo(parameters.describe(package, width))
