"""Serves an export: `python -m kfp_pytorch.serving --model_name NAME --model_dir DIR`."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import signal
import socket
import sys
import tempfile
import warnings
from typing import TYPE_CHECKING, NoReturn

from kfp_pytorch.serving.limits import OMP_ENV
from kfp_pytorch.serving.options import parsed
from kfp_pytorch.serving.supervisor import SOCKET_ENV, Supervisor, bound_socket, end_with_supervisor

if TYPE_CHECKING:
    from kfp_pytorch.serving.predictor import Predictor

MEBI = 1024 * 1024
# So many new lists and the like make Python look for garbage; its own number is 700.
_GARBAGE_OBJECTS = 100_000


def _exit_now(*_: object) -> NoReturn:
    """Ends the process at once; Python's own exit would wait for the model's thread."""
    for stream in (sys.stdout, sys.stderr):
        # The reader of a pipe may be gone.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def main() -> int:
    """Loads, warms up, serves. Returns the exit code: 0 after a signal, 1 when it cannot serve."""
    options = parsed(sys.argv[1:])
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
    from kfp_pytorch.serving.speed.threads import in_own_thread

    torch.set_num_threads(limits.cpu_limit())
    device = _device(options.device)
    if device == "":
        return _failed("--device is cuda, and torch finds no GPU here: see `nvidia-smi`")
    if device == "cpu":  # a GPU's driver maps more than it uses
        limits.cap_memory(limits.memory_limit() // options.workers)
    try:
        served = in_own_thread(_prepared, options, device).result()
    except (export.ExportError, predictor.ModelBroken) as error:
        return _failed(str(error))
    except MemoryError:
        return _failed(
            f"the model does not fit into {limits.with_unit(limits.memory_limit())}, this "
            "container's memory: give the predictor more"
        )
    from kfp_pytorch.serving.server import serve
    from kfp_pytorch.serving.service import Service, Settings

    # What is there now stays, and need not be looked through again and again.
    gc.freeze()
    # A request's lists are in no cycles, and would be looked through while they are made.
    gc.set_threshold(_GARBAGE_OBJECTS, 10, 10)
    gc.enable()
    settings = Settings(
        options.max_body_mib * MEBI,
        options.max_waiting,
        options.batch_delay_ms / 1000,
        float(options.timeout_s),
        float(options.stop_delay_s),
        limits.connection_limit(),
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


def _prepared(options: argparse.Namespace, device: str) -> Predictor:
    """Loads a model, warms it up, and chooses the number of threads."""
    from kfp_pytorch.serving import export, predictor

    loaded = export.load(options.model_dir, device)
    is_bf16 = options.dtype == "bfloat16"
    served = predictor.Predictor(loaded, device, is_bf16, options.max_batch_size)
    served.warm_up()
    if OMP_ENV not in os.environ:
        served.choose_threads()
    return served


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
