"""`kfp-pytorch local`: the cluster on this machine."""

from __future__ import annotations

import click


@click.group("local")
def local() -> None:
    """The cluster on this machine: up, status, down."""
