"""The termination message: how training ended, in at most 2,048 bytes of JSON."""

from __future__ import annotations

import base64
import json
import math
import os
import re
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kfp_pytorch.launcher.constants import (
    MESSAGE_VERSION,
    TERMINATION_LOG_ENV,
    TERMINATION_LOG_PATH,
    TERMINATION_MESSAGE_LIMIT,
)
from kfp_pytorch.training.entry.rank_records import Failure

MAX_POINTS = 64
_ENOUGH_POINTS = 12
# The share of the message for class names, so that samples and curves have room, too.
_CLASSES_SHARE = 0.25


def success_message(result: Mapping[str, Any], limit: int = TERMINATION_MESSAGE_LIMIT) -> str:
    """The message of a training that finished: JSON of at most `limit` bytes of UTF-8.

    `result`: metrics, world_size, samples, curves, and export, or in `no_export` why there is none.
    Metrics and export are complete, but for long class names; then curves and samples are thinned.
    """
    export = dict(result.get("export") or {})
    classes = export.get("model", {}).get("classes", [])
    if _size(classes) > limit * _CLASSES_SHARE:
        export["model"] = {k: v for k, v in export["model"].items() if k != "classes"}
    message: dict[str, Any] = {
        "version": MESSAGE_VERSION,
        "status": "succeeded",
        "metrics": {name: _rounded(value, 6) for name, value in _finite(result["metrics"])},
        "world_size": result["world_size"],
        **({"export": export} if export else {"no_export": result["no_export"]}),
    }
    curves = {name: points for name, points in result.get("curves", {}).items() if points}
    samples = [_packed(sample) for sample in result.get("samples", [])]
    points = MAX_POINTS
    while True:
        extras = {
            "curves": {name: _thinned(curve, points) for name, curve in curves.items()},
            "samples": samples,
        }
        whole = {**message, **{name: value for name, value in extras.items() if value}}
        if _size(whole) <= limit or not (samples or curves):
            return _text(whole)
        # Curves are thinned first; then samples are left out; then the curves.
        if points > _ENOUGH_POINTS:
            points = max(_ENOUGH_POINTS, points * 3 // 4)
        elif len(samples) > 1:
            samples = _without_largest(samples)
        elif points > 2:
            points -= 1
        elif samples:
            samples, points = [], MAX_POINTS
        else:
            curves = {}


def failure_message(failure: Failure, limit: int = TERMINATION_MESSAGE_LIMIT) -> str:
    """The message of a failed training: JSON of at most `limit` bytes of UTF-8."""
    message = failure.message
    # The marks under lines say less than the lines for which there would be no room.
    traceback = re.sub(r"\n[ ~^]+(?=\n)", "", failure.traceback)
    # A traceback ends with the message, which is needed only once.
    if len(message) > limit // 8:
        traceback = traceback.replace(message, "…")
    while True:
        error = {
            "rank": failure.rank,
            "time": round(failure.time, 3),
            "type": failure.type[:100],
            "message": message,
            "traceback": traceback,
        }
        text = _text({"version": MESSAGE_VERSION, "status": "failed", "error": error})
        over = len(text.encode()) - limit
        if over <= 0:
            return text
        # A character can take more than a byte, so a few rounds may be needed, never many.
        cut = max(1, over // 6)
        if traceback:
            traceback = traceback[cut:]
        else:
            message = message[:-cut]


def write_message(text: str, environ: Mapping[str, str] = os.environ) -> None:
    """Writes the termination message once, in place: in a pod the file is a mount.

    Outside of a pod, where no file is named and there is none, nothing is written. If the file
    cannot be written a warning is printed, and the exit code stays.
    """
    named = environ.get(TERMINATION_LOG_ENV)
    path = Path(named or TERMINATION_LOG_PATH)
    if named or path.exists():
        try:
            path.write_bytes(text.encode())
        except OSError as error:
            where = f"{path} cannot be written to ({error.strerror}); see {TERMINATION_LOG_ENV}"
            print(f"warning: the termination message is lost: {where}", file=sys.stderr)


def printable(text: str) -> str:
    """A text with lone surrogates, as in a name that is not UTF-8, escaped."""
    return text.encode(errors="backslashreplace").decode()


def _packed(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A held-out sample in its shortest form: with `packed` and `shape` instead of `instance`.

    Packed are the values as bytes, compressed, in base64: whole numbers from 0 to 255, as pixels
    are, where that is shorter.
    """
    try:
        pixels = bytes(_flat(sample["instance"]))
    except (TypeError, ValueError):
        return dict(sample)
    short = {
        "packed": base64.b64encode(zlib.compress(pixels, 9)).decode(),
        "shape": _shape(sample["instance"]),
        "prediction": sample["prediction"],
    }
    return short if _size(short) < _size(sample) else dict(sample)


def _flat(values: Any) -> list[Any]:
    if not isinstance(values, list):
        return [values]
    return [value for each in values for value in _flat(each)]


def _shape(values: Any) -> list[int]:
    return [len(values), *_shape(values[0])] if isinstance(values, list) else []


def _thinned(curve: list[Any], points: int) -> list[Any]:
    """At most so many points, evenly over the curve, its first and last among them."""
    if len(curve) > points:
        last = len(curve) - 1
        chosen = [round(index * last / (points - 1)) for index in range(points)]
        curve = [curve[index] for index in chosen]
    return [[step, _rounded(value, 3)] for step, value in curve]


def _without_largest(samples: list[Any]) -> list[Any]:
    largest = max(range(len(samples)), key=lambda index: (_size(samples[index]), index))
    return samples[:largest] + samples[largest + 1 :]


def _finite(values: Mapping[str, float]) -> list[tuple[str, float]]:
    return [(name, value) for name, value in values.items() if math.isfinite(value)]


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _size(value: Any) -> int:
    return len(_text(value).encode())


def _text(value: Any) -> str:
    return printable(json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False))
