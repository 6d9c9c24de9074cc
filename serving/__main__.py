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
    """Parses the command line; underscores in its options as in KServe's own servers."""
    parser = argparse.ArgumentParser(
        "python -m kfp_pytorch.serving",
        description="Serves the export of a model to KServe's protocols.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--model_name", type=_name, required=True, help="the model's name in the URL")
    where = "the export, or a directory that has it in one of its own"
    add("--model_dir", type=Path, default=Path(MODEL_MOUNT), help=where)
    host = os.environ.get(SERVING_HOST_ENV, "0.0.0.0")  # noqa: S104
    listen = f"the address to listen at; {SERVING_HOST_ENV} sets the default"
    add("--http_host", default=host, help=listen)
    add("--http_port", type=_between(1, 65535), default=8080, help="the port to listen at")
    largest = "MiB of the largest request; one that is larger is answered with 413"
    add("--max_body_mib", type=_between(1, 65536), default=32, help=largest)
    return parser.parse_args(argv)


def _name(text: str) -> str:
    """Reads a model's name, which must be one segment of a URL."""
    if not re.fullmatch(r"[\w.-]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} has other than letters, digits, '.', '_', '-'")
    return text


def _between(least: int, most: int) -> Callable[[str], int]:
    """Makes a reader of whole numbers within limits."""

    def read(text: str) -> int:
        value = int(text) if text.isdecimal() else least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
        return value

    return read


def _exit_now(*_: object) -> NoReturn:
    """Ends the process at once; Python's own exit would wait for the model's thread."""
    for stream in (sys.stdout, sys.stderr):
        # The reader of a pipe may be gone.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def main() -> int:
    """Loads, warms up, serves. Returns the exit code: 0 after a signal, 1 when it cannot serve."""
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
    # The first process of a container has no default action for a signal. While it serves, uvicorn
    # handles signals and raises them again when all requests in flight are answered.
    signal.signal(signal.SIGTERM, _exit_now)
    signal.signal(signal.SIGINT, _exit_now)
    # From KServe's own use of FastAPI: the user can do nothing about it.
    warnings.filterwarnings("ignore", message="ORJSONResponse is deprecated")
    # The imports create millions of lasting objects; collecting garbage takes a fifth of the time.
    gc.disable()
    # Imported late: torch takes seconds, and a wrong option is reported before.
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
            f"the model does not fit into {limits.with_unit(limits.memory_limit())}, this "
            "container's memory: give the predictor more"
        )
    from kfp_pytorch.serving.server import serve

    gc.enable()
    host, port = options.http_host, options.http_port
    try:
        serve(options.model_name, served, host, port, options.max_body_mib * MEBI)
    except SystemExit:
        # uvicorn exits like this where it cannot listen; it has logged the reason.
        return _failed(
            f"{host}:{port} cannot be listened at, see above; give another --http_port or "
            "--http_host, or stop the process that listens there"
        )
    return 0


def _failed(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
