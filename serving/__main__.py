"""Serves an export: `python -m kfp_pytorch.serving --model_name NAME --model_dir DIR`."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import re
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from kfp_pytorch.launcher.constants import MODEL_MOUNT, SERVING_HOST_ENV

MEBI = 1024 * 1024


def arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line.

    Args:
        argv: The arguments without the program's name.

    Returns:
        The options; underscores in their names as in KServe's own servers.
    """
    parser = argparse.ArgumentParser(
        "python -m kfp_pytorch.serving",
        description="Serves the export of a model to KServe's protocols.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model_name", type=_name, required=True, help="the model's name in the URL"
    )
    parser.add_argument(
        "--model_dir",
        type=Path,
        default=Path(MODEL_MOUNT),
        help="the export, or a directory that has it in one of its own",
    )
    parser.add_argument(
        "--http_host",
        default=os.environ.get(SERVING_HOST_ENV, "0.0.0.0"),  # noqa: S104
        help=f"the address to listen at; {SERVING_HOST_ENV} sets the default",
    )
    parser.add_argument(
        "--http_port", type=_between(1, 65535), default=8080, help="the port to listen at"
    )
    parser.add_argument(
        "--max_body_mib",
        type=_between(1, 65536),
        default=32,
        help="MiB of the largest request; one that is larger is answered with 413",
    )
    return parser.parse_args(argv)


def _name(text: str) -> str:
    """A name that a URL can have in one piece: with another, nobody would reach the model."""
    if not re.fullmatch(r"[\w.-]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} has other than letters, digits, '.', '_', '-'")
    return text


def _between(least: int, most: int) -> Callable[[str], int]:
    """What reads a whole number within limits: a wrong one is told before torch is imported."""

    def read(text: str) -> int:
        value = int(text) if text.isdecimal() else least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
        return value

    return read


def _leave(*_: object) -> NoReturn:
    """Ends at once: Python would wait for a model that computes what nobody waits for any more."""
    for stream in (sys.stdout, sys.stderr):
        # Nobody may read it any more.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def main() -> int:
    """Loads, warms up, serves.

    Returns:
        The exit code: 0 after a signal, 1 when it cannot serve.
    """
    options = arguments(sys.argv[1:])
    try:
        tempfile.gettempdir()
    except OSError as error:
        return _failed(
            f"torch needs a folder for temporary files: {error}; mount an emptyDir at /tmp, or set "
            "TMPDIR to a folder that this user can write to"
        )
    # `import kserve` parses sys.argv with options of its own.
    sys.argv = sys.argv[:1]
    # As the first process of a container it has no default action for the signal. While it serves,
    # uvicorn takes signals, and hands them on when what was in flight is answered.
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    # KServe's own use of FastAPI; nothing that whoever serves a model can change.
    warnings.filterwarnings("ignore", message="ORJSONResponse is deprecated")
    # The imports make millions of objects that stay: collecting meanwhile is a fifth of the time.
    gc.disable()
    # Imported late: torch takes seconds, and a wrong option should not.
    import torch

    from kfp_pytorch.serving import export, limits, predictor

    torch.set_num_threads(limits.cpu_limit())
    if not torch.cuda.is_available():  # a GPU's driver maps more than it uses
        limits.cap_memory(limits.memory_limit())
    try:
        served = predictor.Predictor(export.load(options.model_dir))
        served.warm_up()
    except (export.ExportError, predictor.ModelBroken) as error:
        return _failed(str(error))
    except MemoryError:
        return _failed(
            f"the model does not fit into {limits.in_words(limits.memory_limit())}, this "
            "container's memory: give the predictor more"
        )
    from kfp_pytorch.serving.server import serve

    gc.enable()
    try:
        serve(
            options.model_name,
            served,
            options.http_host,
            options.http_port,
            options.max_body_mib * MEBI,
        )
    except SystemExit:
        # uvicorn's way out where it cannot listen, of which it has logged the reason.
        where = f"{options.http_host}:{options.http_port}"
        return _failed(
            f"{where} cannot be listened at, see above; give another --http_port or --http_host, "
            "or end what listens there"
        )
    return 0


def _failed(words: str) -> int:
    """Says why it does not serve, and gives the exit code."""
    print(f"error: {words}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
