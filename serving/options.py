"""The command line of the predictor; underscores in its options as in KServe's own servers."""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import os
import re
from collections.abc import Callable
from pathlib import Path

from kfp_pytorch.launcher.constants import MODEL_MOUNT, SERVING_HOST_ENV

# With the drain, less than the 30 s that Kubernetes gives a pod to end.
STOP_DELAY_SECONDS = 8


def parsed(argv: list[str]) -> argparse.Namespace:
    """Parses the command line. Exits with a reason where it cannot be parsed."""
    parser = argparse.ArgumentParser(
        "python -m kfp_pytorch.serving",
        description="Serves the export of a model to KServe's protocols.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    _add_model(parser)
    _add_server(parser)
    _add_limits(parser)
    given = parser.parse_args(argv)
    delay = 0 if _is_loopback(given.http_host) else STOP_DELAY_SECONDS
    vars(given).setdefault("stop_delay_s", delay)
    return given


def _add_model(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model_name", type=_name, required=True, help="the model's name in the URL")
    where = "the export, or a directory that has it in one of its own"
    add("--model_dir", type=Path, default=Path(MODEL_MOUNT), help=where)
    device = "where the model runs; auto is a GPU if there is one"
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help=device)
    dtype = "how the model computes: as it was exported, or in bfloat16 where torch can"
    add("--dtype", choices=["auto", "bfloat16"], default="auto", help=dtype)


def _add_server(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    host = os.environ.get(SERVING_HOST_ENV, "0.0.0.0")  # noqa: S104
    listen = f"the address to listen at; {SERVING_HOST_ENV} sets the default"
    add("--http_host", default=host, help=listen)
    add("--http_port", type=_between(1, 65535), default=8080, help="the port to listen at")
    grpc = "the port of gRPC, at the same address; 0 for none"
    add("--grpc_port", type=_between(0, 65535), default=0, help=grpc)
    workers = "processes that serve, each with the model and its share of the CPUs"
    add("--workers", type=_between(1, 256), default=1, help=workers)
    stop = f"seconds that requests are still taken after SIGTERM: {STOP_DELAY_SECONDS}, or 0 on "
    stop += "loopback, unless given"
    add("--stop_delay_s", type=_between(0, 600), default=argparse.SUPPRESS, help=stop)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    largest = "MiB of the largest request; one that is larger is answered with 413"
    add("--max_body_mib", type=_between(1, 65536), default=32, help=largest)
    rows = "the most instances that the model computes at once"
    add("--max_batch_size", type=_between(1, 4096), default=64, help=rows)
    delay = "ms that every request waits for others while the model is free"
    add("--batch_delay_ms", type=_between(0, 10_000), default=0, help=delay)
    waiting = "requests that wait for the model; one more is answered with 503"
    add("--max_waiting", type=_between(1, 100_000), default=256, help=waiting)
    timeout = "seconds until a request is answered with 503, unless it states less or more"
    add("--timeout_s", type=_between(1, 3600), default=60, help=timeout)


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
