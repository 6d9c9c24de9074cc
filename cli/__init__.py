"""The `kfp-pytorch` command.

What a command needs is imported when it runs: `kfp` alone takes half a second.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from typing import Any

_COMMAND_STARTS = (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
)
if _COMMAND_STARTS:
    # Ctrl-C during the imports ends without a traceback.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

import click  # noqa: E402

from kfp_pytorch import __version__  # noqa: E402
from kfp_pytorch.cli.compile import compile_command  # noqa: E402
from kfp_pytorch.cli.doctor import doctor  # noqa: E402
from kfp_pytorch.cli.errors import ERROR_AS_JSON  # noqa: E402
from kfp_pytorch.cli.kfp import runs as runs_on_kfp  # noqa: E402
from kfp_pytorch.cli.kfp import schedule, upload  # noqa: E402
from kfp_pytorch.cli.launcher import launcher  # noqa: E402
from kfp_pytorch.cli.local import local  # noqa: E402
from kfp_pytorch.cli.logs import logs  # noqa: E402
from kfp_pytorch.cli.params import params  # noqa: E402
from kfp_pytorch.cli.run import run  # noqa: E402

if _COMMAND_STARTS:
    signal.signal(signal.SIGINT, signal.default_int_handler)

__all__ = ["main"]


class _Command(click.Group):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command, and whether it is to tell of an error as JSON too."""
        # Its options may be what is wrong, so they are not read for it.
        ctx.meta[ERROR_AS_JSON] = "--json" in args
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; Ctrl-C ends it with the code that a shell expects.

        What the terminal's encoding does not have is written as `?`. With --json an error is one
        JSON object on stdout, besides its words on stderr.
        """
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            if ctx.meta.get(ERROR_AS_JSON):
                click.echo(json.dumps({"error": error.format_message()}))
            raise
        except KeyboardInterrupt:
            raise SystemExit(130) from None


@click.group(cls=_Command, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kfp-pytorch")
def main() -> None:
    """Compile pipelines for Kubeflow, and run them there or on this machine."""


main.add_command(compile_command)
main.add_command(doctor)
main.add_command(launcher)
main.add_command(local)
main.add_command(logs)
main.add_command(params)
main.add_command(run)
main.add_command(runs_on_kfp)
main.add_command(schedule)
main.add_command(upload)
