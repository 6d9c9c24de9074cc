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

from kfp_pytorch.launcher.constants import (
    MESSAGE_VERSION,
    RUN_ID_LABEL,
    SCRIPT_GUIDE,
    TERMINATION_MESSAGE_LIMIT,
)
from kfp_pytorch.launcher.inputs import storage
from kfp_pytorch.launcher.inputs.datasets import SLOTS
from kfp_pytorch.launcher.inputs.storage import Location
from kfp_pytorch.launcher.jobs.kind import JobInputs
from kfp_pytorch.launcher.jobs.termination_messages import Outcome, Success
from kfp_pytorch.launcher.kubernetes import objects, pod_status
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.outputs.curves import render as render_curves
from kfp_pytorch.launcher.outputs.report import render as render_report
from kfp_pytorch.launcher.outputs.report import seconds_running
from kfp_pytorch.launcher.runtime import printing
from kfp_pytorch.launcher.runtime.artifact import Artifact, write
from kfp_pytorch.launcher.text import counted, cut
from kfp_pytorch.launcher.waiting.evidence import Evidence

# How a script reports what is missing.
_CALLS = {
    "metrics": "script.report({…}, step=…)",
    "curves": "script.report({…}, step=…)",
    "export": "script.export(model, …)",
}
_LONGEST_TEXT = 500


@dataclass(frozen=True)
class Artifacts:
    """The output artifacts of a step that runs a job."""

    model: Artifact
    metrics: Artifact
    curves: Artifact
    report: Artifact

    @property
    def identity(self) -> str:
        """The URI that the step is known by."""
        return self.model.uri

    def write(
        self, evidence: Evidence, inputs: JobInputs, manifest: Object, outcome: Outcome
    ) -> Places:
        """Write them, as `write_outputs` does."""
        return write_outputs(self, evidence, inputs, manifest, outcome)


class Places(NamedTuple):
    """Where what the job made lies; the component's output parameters.

    Attributes:
        storage_uri: The export's folder, as KServe reads it; empty where nothing was exported.
    """

    storage_uri: str
    folder: str  # the job's folder, where its checkpoints are: another job may resume from it


def write_outputs(
    outputs: Artifacts, evidence: Evidence, inputs: JobInputs, manifest: Object, outcome: Outcome
) -> Places:
    """Write the four artifacts of a job that succeeded.

    The model gets the short form of `model.json` and the samples as one JSON file, and metadata;
    the metrics get the finite ones, as metadata and as a JSON file, and in the metadata `left_out`,
    which says what of them is not there and why. What is missing or left out is noted in the
    evidence, too. `outcome`: has no `exports.wrong_export`. Returns where the export and the job's
    folder are.
    """
    unread = "" if outcome.success else _warn_of_messages(evidence, manifest)
    success = outcome.success or Success(pod="")
    folder = inputs.folder(objects.name(manifest))
    finite = finite_metrics(success.metrics)
    left_out = _left_out(success, finite, folder)
    for words in left_out:
        _warn(evidence, words)
    if success.curves_left_out:
        _warn(evidence, _did_not_fit(success.curves_left_out, "curve", folder))
    ran = success.world_size if inputs.a_rank_reports else 0
    _warn_of_processes(evidence, inputs, ran)
    if not unread:
        _warn_of_missing(evidence, success)
    about = _metadata(evidence.job or manifest, success, folder, finite) | _made_of(inputs)
    about |= _size(evidence, inputs, ran)
    storage_uri = ""
    if success.export:
        exported = storage.relative("export.path", success.export.path)
        storage_uri = about["storage_uri"] = folder.under(exported).uri
    else:
        reason = success.no_export or unread or "training reported no export"
        about["no_export"] = cut(printing.printable(reason), _LONGEST_TEXT)
    outputs.model.metadata.update(about)
    if not (finite or left_out):
        left_out = [unread or "Training reported no metric that is a finite number."]
    if left_out:
        words = printing.printable(" ".join(left_out))
        outputs.metrics.metadata["left_out"] = cut(words, _LONGEST_TEXT)
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


def _warn_of_messages(evidence: Evidence, manifest: Object) -> str:
    """Say why the result is not known; empty where the container ended well and wrote nothing."""
    words: list[str] = []
    ends = [end for pod in evidence.pods.values() for end in pod_status.container_ends(pod)]
    main = evidence.kind.container
    trained = [end for end in ends if end.container == main and end.exit_code == 0]
    if evidence.pods and not trained:
        words.append(f"The result of training is not known: {_why_unread(evidence, manifest)}")
    words += [
        f"The termination message of {end.pod} was not understood: it must be one JSON "
        f'object with "version": {MESSAGE_VERSION}, "status" and "metrics", of at most '
        f"{TERMINATION_MESSAGE_LIMIT:,} bytes, for a kubelet cuts off the start of a "
        f"longer one. It begins {end.message.strip()[:40]!r}."
        for end in trained
        if end.message.strip()
    ]
    for each in words:
        _warn(evidence, each)
    return next(iter(words), "")


def _why_unread(evidence: Evidence, manifest: Object) -> str:
    if not any(map(pod_status.statuses, evidence.pods.values())):
        return "the status of its pods names no containers."
    advice = evidence.kind.unread_result_advice(manifest)
    return f"its pods were gone before their end was seen. {advice}".rstrip()


def _warn_of_processes(evidence: Evidence, inputs: JobInputs, ran: int) -> None:
    """Say where the program ran on another number of processes than the job is for."""
    each = int(inputs.nproc_per_node) if inputs.nproc_per_node.isdecimal() else 0
    if ran and each and ran != inputs.num_nodes * each and not inputs.resizes:
        _warn(
            evidence,
            f"Training ran as {ran} process{'es' * (ran > 1)}, and the "
            f"job is for {inputs.num_nodes} × {each}, nodes × nproc_per_node: the command says how "
            "many start, as torchrun does by itself.",
        )


def _warn_of_missing(evidence: Evidence, success: Success) -> None:
    """Say in one line what a script did not report, and how it does."""
    parts = {
        "metrics": success.metrics or success.no_numbers or success.left_out,
        "curves": success.curves or success.curves_left_out,
        "export": success.export or success.no_export,
    }
    missing = [name for name, reported in parts.items() if not reported]
    if missing:
        calls = dict.fromkeys(_CALLS[name] for name in missing)
        _warn(
            evidence,
            f"Training reported no {', no '.join(missing)}. A script does so with `from "
            f"kfp_pytorch.training import script`: {' and '.join(calls)}; {SCRIPT_GUIDE} has "
            "examples.",
        )
    if success.no_export and not success.export:
        _warn(evidence, f"Nothing was exported: {success.no_export}")
    if success.export and not success.samples:
        _warn(
            evidence,
            "The export came without inputs with known answers, or none fits into the termination "
            f"message of {TERMINATION_MESSAGE_LIMIT:,} bytes: kserve_predict then needs "
            "`requests`.",
        )


def _left_out(success: Success, kept: Mapping[str, float], folder: Location) -> list[str]:
    """Say of each reported metric that is not kept why it is not."""
    words = []
    if success.left_out:
        words.append(_did_not_fit(success.left_out, "metric", folder))
    for name in sorted(set(success.metrics) - set(kept)):
        value, shown = success.metrics[name], name if name.isprintable() else repr(name)
        if math.isfinite(value):
            words.append(f"Metric {name!r} is left out: that name cannot be shown.")
        else:
            words.append(f"Metric {shown} is left out: it ended as {value}, not finite.")
    words += [
        f"Metric {name!r} is left out: its value is no number." for name in success.no_numbers
    ]
    return words


def _did_not_fit(count: int, what: str, folder: Location) -> str:
    return (
        f"{counted(count, what)} did not fit into the termination message; all are in "
        f"{folder.uri}/metrics.json."
    )


def _short_form(success: Success) -> dict[str, Any]:
    return success.export.model if success.export else {}


def _metadata(
    job: Object, success: Success, folder: Location, finite: Mapping[str, float]
) -> dict[str, Any]:
    texts = {
        "format": _short_form(success).get("format"),
        "triton": _short_form(success).get("triton"),
        "job": objects.name(job),
        "namespace": objects.dig(job, "metadata", "namespace"),
        "run_id": objects.dig(job, "metadata", "labels", RUN_ID_LABEL),
        "folder": folder.uri,
        "sha256": success.export.sha256 if success.export else "",
    }
    flat = {k: v for k, v in texts.items() if isinstance(v, str) and v and v.isprintable()}
    step = {} if success.checkpoint is None else {"checkpoint": success.checkpoint}
    return flat | step | {f"metric_{name}": value for name, value in finite.items()}


def _size(evidence: Evidence, inputs: JobInputs, ran: int) -> dict[str, float]:
    """How many nodes and processes trained, and for how many seconds, as far as it is known."""
    each = int(inputs.nproc_per_node) if inputs.nproc_per_node.isdecimal() else 0
    known = {
        "nodes": inputs.num_nodes,
        "processes": ran or inputs.num_nodes * each,
        "seconds": seconds_running(evidence),
    }
    return {name: value for name, value in known.items() if value}


def _made_of(inputs: JobInputs) -> dict[str, str]:
    """Where the job's data is, as `dataset` or `dataset_NAME`, and its hyperparameters."""
    known = {
        name if name in SLOTS else f"dataset_{name}": of.claim.uri if of.claim else of.uri
        for name, of in inputs.datasets.items()
    }
    known |= {f"hyperparameter_{name}": value for name, value in inputs.hyperparameters.items()}
    return {
        name: value
        for name, value in known.items()
        if value and value.isprintable() and len(value) <= _LONGEST_TEXT
    }


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
