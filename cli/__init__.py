"""The `kfp-pytorch` command.

What a command needs is imported when it runs: `kfp` alone takes half a second.
"""

from __future__ import annotations

import click

from kfp_pytorch import __version__
from kfp_pytorch.cli.compile import compile_command
from kfp_pytorch.cli.local import local
from kfp_pytorch.cli.run import run

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kfp-pytorch")
def main() -> None:
    """Compile pipelines for Kubeflow, and run them on this machine."""


main.add_command(compile_command)
main.add_command(local)
main.add_command(run)
