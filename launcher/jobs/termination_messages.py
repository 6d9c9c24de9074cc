"""The termination messages of the training containers, read and checked.

The kubelet may cut a message or replace it by the end of the log, and other programs write their
own: what is not in this project's format is ignored.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_pytorch.launcher.constants import MESSAGE_VERSION
from kfp_pytorch.launcher.inputs.readers import as_float
from kfp_pytorch.launcher.kubernetes import pod_status
from kfp_pytorch.launcher.kubernetes.objects import Object

# Two kilobytes of real samples unpack to far less; a larger size is refused.
_MAX_PIXELS = 1_000_000
_MAX_OUTPUTS = 4_000_000
Curve = tuple[tuple[float, float], ...]
"""Points of a curve: step and value, by step."""


@dataclass(frozen=True)
class Export:
    """What training exported."""

    path: str  # its folder below the job's folder
    sha256: str = ""  # the hash of its `model.json`; empty if it is unknown
    model: dict[str, Any] = field(default_factory=dict)  # the short form of `model.json`


@dataclass(frozen=True)
class Success:
    """A container's report of a training that succeeded.

    Attributes:
        metrics: The final metrics; not all need be finite.
        samples: Held-out samples with the model's answers: `instance` and `prediction`.
    """

    pod: str  # the pod that reported it
    metrics: dict[str, float] = field(default_factory=dict)
    world_size: int = 0  # the number of processes; 0 if it is unknown
    export: Export | None = None  # what was exported, or None
    curves: dict[str, Curve] = field(default_factory=dict)  # loss and metrics by step, thinned
    samples: tuple[dict[str, Any], ...] = ()
    no_numbers: tuple[str, ...] = ()  # names of reported metrics that are not numbers
    no_export: str = ""  # why nothing was exported, in training's words; empty if it did not say
    checkpoint: int | None = None  # the newest complete checkpoint's step; None without one
    left_out: int = 0  # how many metrics did not fit into the message
    curves_left_out: int = 0  # how many curves did not
    outputs: dict[str, Any] | None = None  # what rank 0 of a distributed component returned


@dataclass(frozen=True)
class Failure:
    """A container's report of its first rank that failed."""

    pod: str  # the pod that reported it
    rank: int | None  # the global rank; None if it is unknown
    time: float  # unix time of the failure; infinite if it is unknown
    type: str  # the exception's class
    message: str  # the exception's message
    traceback: str  # its traceback
    checkpoint: int | None = None  # as in Success
    no_checkpoint: bool = False  # whether it says that there is no checkpoint


@dataclass(frozen=True)
class Outcome:
    """All reports of the training containers."""

    success: Success | None = None  # the fullest message of success, or None
    failures: tuple[Failure, ...] = ()  # messages of failure, the earliest first
    # The newest checkpoint of a container that left a result and then failed; None without one.
    left: int | None = None

    @property
    def checkpoint(self) -> int | None:
        """The newest checkpoint's step, as far as training reported one."""
        reports = [self.success] if self.success else self.failures
        steps = [self.left, *(report.checkpoint for report in reports)]
        return max((step for step in steps if step is not None), default=None)


def read_messages(pods: Iterable[Object]) -> Outcome:
    """Read the termination messages of every container, of its current and last state.

    `pods`: pod objects as last seen. Rank 0 need not be on the first, so all are read. Returns the
    outcome; empty when nothing reads as a message of ours.
    """
    successes: list[Success] = []
    failures: dict[Failure, None] = {}
    left = [-1]
    for end in (end for pod in pods for end in pod_status.container_ends(pod)):
        report = _parse(end.message)
        if report.get("status") == "succeeded" and end.exit_code == 0:
            successes.append(_success(end.pod, report))
        elif report.get("status") == "succeeded":
            left.append(_count(report.get("checkpoint")) or -1)
        elif report.get("status") == "failed":
            failures[_failure(end.pod, report)] = None
    return Outcome(
        success=max(successes, key=_fullness, default=None),
        failures=tuple(sorted(failures, key=lambda failure: failure.time)),
        left=max(left) if max(left) >= 0 else None,
    )


def failure_in(message: str) -> Failure | None:
    """The failure that a container's termination message reports; None where it reports none."""
    report = _parse(message)
    return _failure("", report) if report.get("status") == "failed" else None


def says_no_checkpoint(message: str) -> bool:
    """Whether a termination message says that there is no checkpoint."""
    report = _parse(message)
    # A failure without the key does not know.
    default = 0 if report.get("status") == "failed" else None
    return bool(report) and report.get("checkpoint", default) is None


def is_ours(message: str) -> bool:
    """Whether a termination message is one of ours, and not the end of a log or another's."""
    return bool(_parse(message))


def _parse(message: str) -> dict[str, Any]:
    try:
        report = json.loads(message)
    except (ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) and report.get("version") == MESSAGE_VERSION else {}


def _fullness(success: Success) -> tuple[bool, bool, int, int]:
    return (
        success.outputs is not None,
        success.export is not None,
        len(success.metrics),
        len(success.curves),
    )


def _success(pod: str, report: Mapping[str, Any]) -> Success:
    return Success(
        pod=pod,
        metrics=_metrics(report.get("metrics")) | _not_finite(report.get("not_finite")),
        no_numbers=tuple(k for k, v in _object(report.get("metrics")).items() if not _is_number(v)),
        world_size=int(_number(report.get("world_size"), 0)),
        export=_export(report.get("export")),
        no_export=" ".join(str(report.get("no_export") or "").split()),
        checkpoint=_count(report.get("checkpoint")),
        left_out=_count(report.get("left_out")) or 0,
        curves_left_out=_count(report.get("curves_left_out")) or 0,
        curves=_curves(report.get("curves")),
        outputs=_outputs(report["outputs"]) if "outputs" in report else None,
        samples=tuple(
            sample
            for sample in map(_unpacked, map(_object, _list(report.get("samples"))))
            if {"instance", "prediction"} <= set(sample)
        ),
    )


def _failure(pod: str, report: Mapping[str, Any]) -> Failure:
    error = _object(report.get("error"))
    rank = error.get("rank")
    return Failure(
        pod=pod,
        rank=rank if isinstance(rank, int) and not isinstance(rank, bool) else None,
        time=_number(error.get("time"), math.inf),
        type=str(error.get("type") or ""),
        message=str(error.get("message") or ""),
        traceback=str(error.get("traceback") or ""),
        checkpoint=_count(report.get("checkpoint")),
        no_checkpoint=report.get("checkpoint", 0) is None,
    )


def _metrics(value: Any) -> dict[str, float]:
    return {name: as_float(n) for name, n in _object(value).items() if _is_number(n)}


def _not_finite(value: Any) -> dict[str, float]:
    """Metrics whose last value JSON has no number for."""
    return {name: float(n) for name, n in _object(value).items() if n in ("nan", "inf", "-inf")}


def _export(value: Any) -> Export | None:
    report = _object(value)
    if not isinstance(report.get("path"), str) or not report["path"]:
        return None
    return Export(report["path"], str(report.get("sha256") or ""), _object(report.get("model")))


def _curves(value: Any) -> dict[str, Curve]:
    curves = {}
    for name, points in _object(value).items():
        read = [
            (as_float(point[0]), as_float(point[1]))
            for point in _list(points)
            if isinstance(point, list) and len(point) == 2 and all(map(_is_number, point))
        ]
        if read:
            curves[name] = tuple(sorted(read, key=lambda point: point[0]))
    return curves


def _unpacked(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample with its `instance` as nested lists; one that cannot be unpacked has none."""
    if "packed" not in sample:
        return sample
    try:
        content = base64.b64decode(sample["packed"], validate=True)
        values: list[Any] = list(zlib.decompressobj().decompress(content, _MAX_PIXELS))
        shape = [int(size) for size in sample["shape"]]
        if math.prod(shape) != len(values) or min(shape, default=0) < 1:
            return {}
    except (TypeError, ValueError, OverflowError, KeyError, zlib.error):
        return {}
    for size in reversed(shape[1:]):
        values = [values[start : start + size] for start in range(0, len(values), size)]
    return {"instance": values, **{k: v for k, v in sample.items() if k not in ("packed", "shape")}}


def _outputs(value: Any) -> dict[str, Any] | None:
    """What rank 0 returned, which may be compressed; None where it cannot be read."""
    outputs = _object(value)
    if "packed" not in outputs:
        return outputs
    try:
        content = base64.b64decode(outputs["packed"], validate=True)
        return _object(json.loads(zlib.decompressobj().decompress(content, _MAX_OUTPUTS)))
    except (TypeError, ValueError, zlib.error):
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: Any, default: float) -> float:
    number = as_float(value) if _is_number(value) else math.nan
    return number if math.isfinite(number) else default


def _count(value: Any) -> int | None:
    """A whole number from 0; None where it is none."""
    number = _number(value, -1.0)
    return int(number) if number >= 0 and number == int(number) else None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
