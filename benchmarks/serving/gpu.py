"""A ResNet-50 on a GPU: through the predictor, and alone."""

from __future__ import annotations

import base64
import io
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import urllib3

from benchmarks.cards import card
from benchmarks.figures import show
from benchmarks.serving import grpc, http
from benchmarks.serving.http import Load
from benchmarks.serving.models import RESNET50
from benchmarks.serving.processes import Started, predictor, running
from kfp_pytorch.serving import export as exports
from kfp_pytorch.serving.predictor import Predictor

BATCHES = (32, 64, 128, 256)
IMAGES = 64  # of a request
CALLS = 16
# The processes that send, as one does not send as much as a GPU computes.
CLIENTS = 4
# Of the predictor: one reads no more either.
WORKERS = (1, 2, 4)
# JSON of an image takes 0.7 MB.
JSON_IMAGES = 8


def measure(folder: Path, seconds: float) -> None:
    if not torch.cuda.is_available():
        print("no GPU is here: a ResNet-50 on one was not measured", file=sys.stderr)
        return
    written = RESNET50.write(folder)
    alone = {size: _alone(written, size, seconds) for size in BATCHES}
    best = max(alone, key=lambda size: alone[size])
    rates = ", ".join(f"{size}: {rate:.0f}" for size, rate in alone.items())
    show("gpu_model_images_s", alone[best], "images/s", f"alone, by batch: {rates}; {card()}")
    for workers in WORKERS:
        _served(written, folder, seconds, workers, best, alone[best])


def _served(
    written: Path, folder: Path, seconds: float, workers: int, best: int, alone: float
) -> None:
    options = ["--device=cuda", "--dtype=bfloat16", f"--max_batch_size={best}", "--max_body_mib=64"]
    options.append(f"--workers={workers}")
    images = np.stack([RESNET50.image(seed) for seed in range(IMAGES)])
    request = grpc.write_request(images, "UINT8", folder / "gpu")
    with running({"predictor": predictor(written, *options)}) as servers:
        server, about = servers["predictor"], f"{workers} workers"

        def calls() -> Load:
            return grpc.load(server.grpc_port, request, seconds, CALLS, CLIENTS)

        _show("grpc", IMAGES, alone, server, calls, f"limit 0.8; {about}; ")
        for name, body in (("v1", _lists(images[:JSON_IMAGES])), ("jpeg", _jpegs(images))):
            file = folder / f"{name}.json"
            file.write_text(json.dumps({"instances": body}))
            count = len(body)
            _show(
                name,
                count,
                alone,
                server,
                lambda file=file: http.load(server.predict, file, seconds, CALLS),
                f"{about}; ",
            )


def _alone(written: Path, size: int, seconds: float) -> float:
    """Images a second of the model with batches that lie on the GPU."""
    served = Predictor(exports.load(written, "cuda"), "cuda", bf16=True, max_batch=size)
    rows = torch.randint(0, 256, (size, *RESNET50.shape), dtype=torch.uint8, device="cuda")
    served.warm_up()
    torch.cuda.synchronize()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds / 2:
        for _ in range(10):
            served._call(rows)
        torch.cuda.synchronize()
        count += 10
    return count * size / (time.perf_counter() - began)


def _show(
    name: str,
    count: int,
    alone: float,
    server: Started,
    load: Callable[[], Load],
    limit: str = "",
) -> None:
    load()
    before, began = _computed(server), time.perf_counter()
    found = load()
    share = (_computed(server) - before) / (time.perf_counter() - began)
    rate = found.rate * count
    about = f"{count} images a request, {CALLS} at once; {card()}"
    busy = f"batches took {share:.0%} of the time (two overlap)"
    show(f"gpu_{name}_ratio", rate / alone, "", f"{limit}{rate:.0f} images/s; {busy}; {about}")
    show(f"gpu_{name}_p99_ms", found.p99, "ms", about)


def _computed(server: Started) -> float:
    """The seconds that batches have taken, as the predictor's metrics say."""
    page = urllib3.request("GET", f"http://127.0.0.1:{server.port}/metrics").data.decode()
    match = re.search(r"^kfp_pytorch_batch_seconds_sum\S* (\S+)", page, re.M)
    return float(match[1]) if match else 0.0


def _lists(images: Any) -> list[Any]:
    return [image.tolist() for image in images]


def _jpegs(images: Any) -> list[Any]:
    from PIL import Image

    found = []
    for image in images:
        # Noise would be far larger than a photograph.
        small = Image.fromarray(image[:, :14, :14].transpose(1, 2, 0)).resize((224, 224))
        file = io.BytesIO()
        small.save(file, "JPEG", quality=90)
        found.append({"b64": base64.b64encode(file.getvalue()).decode()})
    return found
