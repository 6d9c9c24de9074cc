"""Serves an export: `python -m kfp_pytorch.serving --model_name NAME --model_dir DIR`."""

from __future__ import annotations

import argparse
import contextlib
import gc
import ipaddress
import os
import re
import signal
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from kfp_pytorch.launcher.constants import MODEL_MOUNT, SERVING_HOST_ENV
from kfp_pytorch.serving.limits import OMP_ENV
from kfp_pytorch.serving.supervisor import SOCKET_ENV, Supervisor, bound_socket, end_with_supervisor

MEBI = 1024 * 1024
# With the drain, less than the 30 s that Kubernetes gives a pod to end.
STOP_DELAY_SECONDS = 8


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
    grpc = "the port of gRPC, at the same address; 0 for none"
    add("--grpc_port", type=_between(0, 65535), default=0, help=grpc)
    device = "where the model runs; auto is a GPU if there is one"
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help=device)
    dtype = "how the model computes: as it was exported, or in bfloat16 where torch can"
    add("--dtype", choices=["auto", "bfloat16"], default="auto", help=dtype)
    rows = "the most instances that the model computes at once"
    add("--max_batch_size", type=_between(1, 4096), default=64, help=rows)
    delay = "ms that a request waits for others while the model is free"
    add("--batch_delay_ms", type=_between(0, 10_000), default=0, help=delay)
    waiting = "requests that wait for the model; one more is answered with 503"
    add("--max_waiting", type=_between(1, 100_000), default=256, help=waiting)
    timeout = "seconds until a request is answered with 503, unless it states less or more"
    add("--timeout_s", type=_between(1, 3600), default=60, help=timeout)
    workers = "processes that serve, each with the model and its share of the CPUs"
    add("--workers", type=_between(1, 256), default=1, help=workers)
    stop = "seconds that requests are still taken after SIGTERM; by default "
    stop += f"{STOP_DELAY_SECONDS}, and 0 on loopback"
    add("--stop_delay_s", type=_between(0, 600), default=argparse.SUPPRESS, help=stop)
    given = parser.parse_args(argv)
    delay = 0 if _is_loopback(given.http_host) else STOP_DELAY_SECONDS
    vars(given).setdefault("stop_delay_s", delay)
    return given


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


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
    if options.workers > 1 and SOCKET_ENV not in os.environ:
        return _supervise(options)
    # `import kserve` parses sys.argv with options of its own.
    sys.argv = sys.argv[:1]
    # The first process of a container has no default action for a signal. While it serves, uvicorn
    # handles signals and raises them again when all requests in flight are answered.
    signal.signal(signal.SIGTERM, _exit_now)
    signal.signal(signal.SIGINT, _exit_now)
    # From KServe's own use of FastAPI: the user can do nothing about it.
    warnings.filterwarnings("ignore", message="ORJSONResponse is deprecated")
    # The model does not write to a request's bytes.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    # The imports create millions of lasting objects; collecting garbage takes a fifth of the time.
    gc.disable()
    # Imported late: torch takes seconds, and a wrong option is reported before.
    import torch

    from kfp_pytorch.serving import export, limits, predictor

    torch.set_num_threads(limits.cpu_limit())
    device = _device(options.device)
    if device == "":
        return _failed("--device is cuda, and torch finds no GPU here: see `nvidia-smi`")
    if device == "cpu":  # a GPU's driver maps more than it uses
        limits.cap_memory(limits.memory_limit() // options.workers)
    try:
        loaded = export.load(options.model_dir, device)
        served = predictor.Predictor(
            loaded, device, options.dtype == "bfloat16", options.max_batch_size
        )
        served.warm_up()
    except (export.ExportError, predictor.ModelBroken) as error:
        return _failed(str(error))
    except MemoryError:
        return _failed(
            f"the model does not fit into {limits.with_unit(limits.memory_limit())}, this "
            "container's memory: give the predictor more"
        )
    if OMP_ENV not in os.environ:
        served.choose_threads()
    from kfp_pytorch.serving.server import serve
    from kfp_pytorch.serving.service import Service, Settings

    # What is there now stays, and need not be looked through again and again.
    gc.freeze()
    gc.enable()
    settings = Settings(
        options.max_body_mib * MEBI,
        options.max_waiting,
        options.batch_delay_ms / 1000,
        float(options.timeout_s),
        float(options.stop_delay_s),
    )
    host, port, listening = options.http_host, options.http_port, None
    if SOCKET_ENV in os.environ:
        end_with_supervisor()
        listening = socket.socket(fileno=int(os.environ[SOCKET_ENV]))
    try:
        service = Service(options.model_name, served, settings)
        serve(service, host, port, options.grpc_port, listening)
    except SystemExit:
        # uvicorn exits like this where it cannot listen; it has logged the reason.
        return _failed(_taken(host, port, "--http_port"))
    except OSError:
        return _failed(_taken(host, options.grpc_port, "--grpc_port"))
    finally:
        # Where the process goes on to Python's own end, which looks for what is left.
        gc.unfreeze()
    return 0


def _device(wanted: str) -> str:
    """The device as torch names it; empty where it is not there."""
    import torch

    there = torch.cuda.is_available()
    if wanted == "auto":
        return "cuda" if there else "cpu"
    return wanted if there or wanted == "cpu" else ""


def _supervise(options: argparse.Namespace) -> int:
    """Runs several workers. Returns the exit code."""
    host, port = options.http_host, options.http_port
    try:
        listening = bound_socket(host, port)
    except OSError:
        return _failed(_taken(host, port, "--http_port"))
    return Supervisor(sys.argv[1:], options.workers, listening).run()


def _taken(host: str, port: int, option: str) -> str:
    return (
        f"{host}:{port} cannot be listened at, see above; give another {option} or --http_host, or "
        "stop the process that listens there"
    )


def _failed(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
