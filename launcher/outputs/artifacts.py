"""Writes the artifacts of a step that succeeded: Model, Metrics, curves and report.

Metadata must be flat strings and finite numbers: on a cluster it goes through ML Metadata, which
fails on null, wraps lists, and refuses a run whose numbers are not finite.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kfp_pytorch.launcher.constants import MESSAGE_VERSION, TERMINATION_MESSAGE_LIMIT
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import storage
from kfp_pytorch.launcher.inputs.storage import Location
from kfp_pytorch.launcher.jobs.kind import JobInputs
from kfp_pytorch.launcher.jobs.termination_messages import Outcome, Success
from kfp_pytorch.launcher.kubernetes import objects, pod_status
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.outputs.curves import render as render_curves
from kfp_pytorch.launcher.outputs.report import render as render_report
from kfp_pytorch.launcher.runtime import printing
from kfp_pytorch.launcher.runtime.artifact import Artifact, write
from kfp_pytorch.launcher.waiting.evidence import Evidence


@dataclass(frozen=True)
class Artifacts:
    """The output artifacts of a step that runs a job."""

    model: Artifact
    metrics: Artifact
    curves: Artifact
    report: Artifact


class Places(NamedTuple):
    """Where what the job made lies; the component's output parameters.

    Attributes:
        storage_uri: The export's folder, as KServe reads it; the job's where nothing was exported.
    """

    storage_uri: str
    folder: str  # the job's folder, where its checkpoints are: another job may resume from it


def write_outputs(
    outputs: Artifacts, evidence: Evidence, inputs: JobInputs, manifest: Object, outcome: Outcome
) -> Places:
    """Write the four artifacts of a job that succeeded.

    The model gets the short form of `model.json` and the samples as one JSON file, and metadata;
    the metrics get the finite ones, as metadata and as a JSON file. What is left out is noted in
    the evidence. Returns where the export and the job's folder are.
    """
    if outcome.success is None:
        _warn_of_messages(evidence, manifest)
    success = outcome.success or Success(pod="")
    folder = inputs.folder(objects.name(manifest))
    finite = finite_metrics(success.metrics)
    _warn_of_metrics(evidence, success, finite)
    storage_uri = _exported(folder, success, evidence).uri
    about = _metadata(evidence.job or manifest, success, folder, storage_uri, finite)
    outputs.model.metadata.update(about)
    outputs.metrics.metadata.update(finite)
    # Without a file the KFP UI shows an error in the place of the artifact's content.
    write(outputs.metrics, json.dumps(finite, ensure_ascii=False, indent=2))
    content = {"model": _short_form(success), "samples": success.samples}
    write(outputs.model, json.dumps(json_safe(content), ensure_ascii=False))
    write(outputs.curves, render_curves(success.curves, f"Curves of {objects.name(manifest)}"))
    write(outputs.report, render_report(evidence, inputs, manifest, outcome))
    return Places(storage_uri, folder.uri)


def finite_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Keep the metrics that are finite numbers and have a name that can be shown."""
    return {
        name: value
        for name, value in metrics.items()
        if name and name.isprintable() and math.isfinite(value)
    }


def _warn_of_messages(evidence: Evidence, manifest: Object) -> None:
    ends = [end for pod in evidence.pods.values() for end in pod_status.container_ends(pod)]
    main = evidence.kind.container
    trained = [end for end in ends if end.container == main and end.exit_code == 0]
    if evidence.pods and not trained:
        _warn(evidence, f"The result of training is not known: {_why_unread(evidence, manifest)}")
    for end in trained:
        if end.message.strip():
            _warn(
                evidence,
                f"The termination message of {end.pod} was not understood: it must be one JSON "
                f'object with "version": {MESSAGE_VERSION}, "status" and "metrics", of at most '
                f"{TERMINATION_MESSAGE_LIMIT:,} bytes, for a kubelet cuts off the start of a "
                f"longer one. It begins {end.message.strip()[:40]!r}.",
            )


def _why_unread(evidence: Evidence, manifest: Object) -> str:
    if not any(map(pod_status.statuses, evidence.pods.values())):
        return "the status of its pods names no containers."
    advice = evidence.kind.unread_result_advice(manifest)
    return f"its pods were gone before their end was seen. {advice}".rstrip()


def _warn_of_metrics(evidence: Evidence, success: Success, kept: Mapping[str, float]) -> None:
    for name in sorted(set(success.metrics) - set(kept)):
        value, shown = success.metrics[name], name if name.isprintable() else repr(name)
        if math.isfinite(value):
            _warn(evidence, f"Metric {name!r} is left out: that name cannot be shown.")
        else:
            _warn(evidence, f"Metric {shown} ended as {value}: training diverged.")
    for name in success.no_numbers:
        _warn(evidence, f"Metric {name!r} is left out: its value is no number.")


def _exported(folder: Location, success: Success, evidence: Evidence) -> Location:
    if success.export is None:
        _warn(evidence, "Training reported no export; storage_uri is the job's folder.")
        return folder
    try:
        return folder.under(storage.relative("export.path", success.export.path))
    except InputError as error:
        _warn(evidence, f"{error.message} storage_uri is the job's folder.")
        return folder


def _short_form(success: Success) -> dict[str, Any]:
    return success.export.model if success.export else {}


def _metadata(
    job: Object, success: Success, folder: Location, storage_uri: str, finite: Mapping[str, float]
) -> dict[str, Any]:
    texts = {
        "storage_uri": storage_uri,
        "format": _short_form(success).get("format"),
        "job": objects.name(job),
        "namespace": objects.dig(job, "metadata", "namespace"),
        "folder": folder.uri,
        "sha256": success.export.sha256 if success.export else "",
    }
    flat = {k: v for k, v in texts.items() if isinstance(v, str) and v and v.isprintable()}
    return flat | {f"metric_{name}": value for name, value in finite.items()}


def json_safe(value: Any) -> Any:
    """Copy JSON with null in the place of numbers that are not finite: strict JSON has none."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: json_safe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(item) for item in value]
    return value


def _warn(evidence: Evidence, words: str) -> None:
    evidence.notes.append(words)
    printing.log(f"warning: {words}")
