"""`kfp-pytorch params`: what a pipeline can be given."""

from __future__ import annotations

import click


@click.command("params")
@click.argument("pipeline")
def params(pipeline: str) -> None:
    """List a pipeline's parameters.

    Each with its type, default and description. PIPELINE is named as for `run`.
    """
    from kfp_pytorch.cli.packages import find, parameters

    click.echo(parameters.describe(find.find_one(pipeline)))
