"""`kfp-pytorch upload`: pipelines to KFP, each content once."""

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


@click.command("upload", short_help="Upload a pipeline to KFP.")
@click.argument("pipeline")
@click.option("--name", default="", help="Of the pipeline in KFP; default: its own.")
@click.option("--version", default="", help="The version's name; default: one made of the content.")
@click.option("--description", default="", help="For a person; default: the pipeline's own.")
@json_option
@endpoint_options
def upload(pipeline: str, name: str, version: str, description: str, **options: Any) -> None:
    """Upload PIPELINE, named as for `run`, as a version; the same content is uploaded once.

    The first upload makes the pipeline. Everything that `compile` finds is found before.
    """
    as_json = options.pop("as_json")
    client = connect(endpoint_of(options))
    made = client.upload(pipeline, name=name, version=version, description=description)
    if as_json:
        print_json(made)
        return
    done = "is uploaded" if made.uploaded else "is there already"
    click.echo(f"Version {made.name} of pipeline {made.pipeline} {done}.")
    if made.url:
        click.echo(made.url)
