"""The termination message: how training ended, in at most 2,048 bytes of JSON."""

from __future__ import annotations

import base64
import bisect
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
_SHORTEST_CURVE = 16  # bytes


def success_message(result: Mapping[str, Any], limit: int = TERMINATION_MESSAGE_LIMIT) -> str:
    """The message of a training that finished: JSON of at most `limit` bytes of UTF-8.

    `result`: metrics, world_size, samples, curves, perhaps the newest checkpoint's step, and
    export, or in `no_export` why there is none. Metrics and export come first; long class names are
    left out, then curves and samples are thinned. Metrics for which there is no room even then are
    counted in `left_out`, the last ones first, and curves in `curves_left_out`.
    """
    export = _short_export(result.get("export") or {}, limit)
    step = result.get("checkpoint")
    odd = {
        name: str(value) for name, value in result["metrics"].items() if not math.isfinite(value)
    }
    odd |= result.get("not_finite", {})
    message: dict[str, Any] = {
        "version": MESSAGE_VERSION,
        "status": "succeeded",
        "metrics": {},  # they come first
        "world_size": result["world_size"],
        **({} if step is None else {"checkpoint": step}),
        **({"export": export} if export else {"no_export": _cut(result["no_export"], limit // 4)}),
    }
    finite = {
        name: _rounded(value, 6)
        for name, value in result["metrics"].items()
        if math.isfinite(value)
    }
    curves = {name: points for name, points in result.get("curves", {}).items() if points}
    # Where no curve fits, there is room to say so.
    room = limit - _size({"curves_left_out": len(curves)}) if curves else limit
    reported = [*finite, *odd]

    def with_first(count: int) -> dict[str, Any]:
        kept = reported[:count]
        more = {
            "not_finite": {name: odd[name] for name in kept if name in odd},
            "left_out": len(reported) - count,
        }
        metrics = {name: finite[name] for name in kept if name in finite}
        return (
            message | {"metrics": metrics} | {name: value for name, value in more.items() if value}
        )

    most = len(reported)
    if _size(with_first(most)) > room:
        most = bisect.bisect_right(range(most), room, key=lambda n: _size(with_first(n))) - 1
    return _text(_with_extras(with_first(max(0, most)), curves, result.get("samples", []), limit))


def _short_export(export: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """An export in at most half of the message: `model.json` has all that is left out."""
    model = export.get("model", {})
    if _size(model.get("classes", [])) > limit * _CLASSES_SHARE:
        model = {name: value for name, value in model.items() if name != "classes"}
    if _size({**export, "model": model}) > limit // 2:
        model = {name: value for name, value in model.items() if name in ("format", "versions")}
    return {**export, "model": model} if "model" in export else dict(export)


def _with_extras(
    message: dict[str, Any], every: Mapping[str, list[Any]], given: list[Any], limit: int
) -> dict[str, Any]:
    """The message with as much of curves and samples as fits."""
    # No more could fit, however short.
    curves = dict(list(every.items())[: limit // _SHORTEST_CURVE])
    samples = [_packed(sample) for sample in given]
    points = MAX_POINTS
    while True:
        extras = {
            "curves": {name: _thinned(curve, points) for name, curve in curves.items()},
            "samples": samples,
            "curves_left_out": len(every) - len(curves),
        }
        whole = {**message, **{name: value for name, value in extras.items() if value}}
        if _size(whole) <= limit or not (samples or curves):
            return whole
        # Curves are thinned first; then samples are left out; then half of the curves.
        if points > _ENOUGH_POINTS:
            points = max(_ENOUGH_POINTS, points * 3 // 4)
        elif len(samples) > 1:
            samples = _without_largest(samples)
        elif points > 2:
            points -= 1
        elif samples:
            samples, points = [], MAX_POINTS
        else:
            curves, points = dict(list(curves.items())[: len(curves) // 2]), MAX_POINTS


def failure_message(
    failure: Failure,
    known: Mapping[str, int | None] | None = None,
    limit: int = TERMINATION_MESSAGE_LIMIT,
) -> str:
    """The message of a failed training: JSON of at most `limit` bytes of UTF-8.

    `known`: where that is known, `checkpoint`: the newest one's step, or None if there is none.
    """
    message, known = failure.message, known or {}
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
        text = _text({"version": MESSAGE_VERSION, "status": "failed", **known, "error": error})
        over = len(text.encode()) - limit
        if over <= 0:
            return text
        # A character can take more than a byte, so a few rounds may be needed, never many.
        cut = max(1, over // 6)
        if traceback:
            traceback = traceback[cut:]
        else:
            message = message[:-cut]


def message_path(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The file of the termination message: in a pod a mount; elsewhere None, if none is named."""
    named = environ.get(TERMINATION_LOG_ENV)
    path = Path(named or TERMINATION_LOG_PATH)
    return path if named or path.exists() else None


def write_message(text: str, environ: Mapping[str, str] = os.environ) -> None:
    """Writes the termination message once, in place; see `message_path`.

    If the file cannot be written a warning is printed, and the exit code stays.
    """
    path = message_path(environ)
    if path is not None:
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
    are, where that is shorter. Of answers six digits are kept: `kserve_predict` compares four.
    """
    plain = {
        name: _all_rounded(value, 6) if name == "prediction" else value
        for name, value in sample.items()
    }
    try:
        pixels = bytes(_flat(sample["instance"]))
    except (TypeError, ValueError):
        return plain
    short = {
        "packed": base64.b64encode(zlib.compress(pixels, 9)).decode(),
        "shape": _shape(sample["instance"]),
        **{name: value for name, value in plain.items() if name != "instance"},
    }
    return short if _size(short) < _size(plain) else plain


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


def _cut(text: str, most: int) -> str:
    """A text cut to so many bytes of JSON."""
    while _size(text) > most:
        text = text[: len(text) * 7 // 8]
    return text


def _all_rounded(values: Any, digits: int) -> Any:
    """Numbers, in lists of lists, whose fractions have so many digits."""
    if isinstance(values, list):
        return [_all_rounded(value, digits) for value in values]
    return _rounded(values, digits) if isinstance(values, float) else values


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _size(value: Any) -> int:
    return len(_text(value).encode())


def _text(value: Any) -> str:
    return printable(json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False))
