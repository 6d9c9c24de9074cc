"""The step of a distributed component: a job whose rank 0 returns the step's outputs."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kfp_pytorch.launcher.diagnosis.same_error import failed_once, failed_twice
from kfp_pytorch.launcher.errors import JobFailed
from kfp_pytorch.launcher.jobs.distributed.component import (
    DISTRIBUTED,
    EXECUTOR_INPUT,
    REPORT,
    from_argument,
    inputs_of,
)
from kfp_pytorch.launcher.jobs.kind import JobInputs
from kfp_pytorch.launcher.jobs.registry import KINDS
from kfp_pytorch.launcher.jobs.termination_messages import Outcome
from kfp_pytorch.launcher.kubernetes import objects
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.outputs.report import render
from kfp_pytorch.launcher.runtime.artifact import Artifact, write
from kfp_pytorch.launcher.steps import train_job
from kfp_pytorch.launcher.steps.job import as_given, run_checked
from kfp_pytorch.launcher.waiting.evidence import Evidence

# A signal finds out here what must not outlive the step, however early it comes.
HAS_TARGET = True
_PREPARE = {"train_job": train_job.fitted_to_cluster}
# A PyTorchJob has a restart policy; that of a TrainJob is its runtime's.
_FAILED = {"train_job": failed_once}

MakeArtifact = Callable[..., Artifact]
"""Makes KFP's artifact of its name, URI and metadata."""


@dataclass(frozen=True)
class Returned:
    """The step's outputs, which rank 0 returned."""

    step: Mapping[str, Any]  # KFP's executor input
    artifacts: Mapping[str, Artifact]  # the output artifacts, by name

    @property
    def report(self) -> Artifact:
        """The artifact that tells what ran."""
        return self.artifacts[REPORT]

    @property
    def identity(self) -> str:
        """The URI that the step is known by."""
        return self.report.uri

    def write(
        self, evidence: Evidence, inputs: JobInputs, manifest: Object, outcome: Outcome
    ) -> None:
        """Writes what KFP reads of a step. Raises JobFailed: rank 0 left no outputs."""
        success = outcome.success
        if success is None or success.outputs is None:
            raise JobFailed(
                f"Job {objects.name(manifest)} succeeded, and what rank 0 returned is not known: "
                "its pod left no termination message, as after os._exit() in the function, or was "
                "gone before it was read. Start the step again."
            )
        outputs = success.outputs
        told = replace(success, metrics=self._metrics(outputs))
        write(self.report, render(evidence, inputs, manifest, replace(outcome, success=told)))
        folder = inputs.folder(objects.name(manifest)).under("outputs")
        for name, found in outputs.get("artifacts", {}).items():
            self._fill(name, found, folder.under(name).uri)
        for name, text in outputs.get("files", {}).items():
            file = Path(self.step["outputs"]["parameters"][name]["outputFile"])
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        self._write_executor_output(outputs.get("parameters", {}))

    def _fill(self, name: str, found: Mapping[str, Any], own: str) -> None:
        artifact, uri = self.artifacts[name], found.get("uri", own)
        artifact.metadata.update(found.get("metadata", {}))
        if "uri" in found and not uri.startswith("pvc://"):
            artifact.uri = uri
        elif "uri" in found or found.get("written"):
            # KFP can upload no file that its step does not have, and reads no claim.
            artifact.metadata["storage_uri"] = uri
            content = found.get("content")
            write(artifact, _pointer(self._type(name), uri) if content is None else content)

    def _type(self, name: str) -> str:
        described = self.step["outputs"]["artifacts"][name]["artifacts"][0]
        return str(described.get("type", {}).get("schemaTitle", ""))

    def _metrics(self, outputs: Mapping[str, Any]) -> dict[str, float]:
        """The numbers of the function's metrics, for the report."""
        return {
            key: float(value)
            for name, found in outputs.get("artifacts", {}).items()
            if self._type(name) == "system.Metrics"
            for key, value in found.get("metadata", {}).items()
            if isinstance(value, (int, float))
        }

    def _write_executor_output(self, parameters: Mapping[str, Any]) -> None:
        described = {
            name: {
                "artifacts": [
                    {"name": name_of(artifact), "uri": artifact.uri, "metadata": artifact.metadata}
                ]
            }
            for name, artifact in self.artifacts.items()
        }
        file = Path(self.step["outputs"]["outputFile"])
        file.parent.mkdir(parents=True, exist_ok=True)
        content = {"parameterValues": dict(parameters), "artifacts": described}
        file.write_text(json.dumps(content), encoding="utf-8")


def _pointer(kind: str, uri: str) -> str:
    """The content of an artifact whose file is elsewhere, as KFP's UI shows it."""
    if kind == "system.HTML":
        return f"<p>The page is too large to be shown here. It is at {html.escape(uri)}</p>"
    if kind == "system.Markdown":
        return f"The text is too large to be shown here. It is at `{uri}`"
    return json.dumps({"storage_uri": uri})


def name_of(artifact: Any) -> str:
    """The name that KFP gave an artifact."""
    return str(getattr(artifact, "name", ""))


def run(arguments: Sequence[str], make: MakeArtifact) -> None:
    """Runs a component's function in every process of a job, and hands on what rank 0 returned.

    `arguments`: the step's, with KFP's executor input and the component. Raises StepError: as
    `run_job` does, or an input artifact cannot reach the pods.
    """
    kind, returned, inputs = read(arguments, make)
    prepare, failed = _PREPARE.get(kind, as_given), _FAILED.get(kind, failed_twice)
    run_checked(KINDS[kind], returned, inputs, prepare, failed)


def read(arguments: Sequence[str], make: MakeArtifact) -> tuple[str, Returned, JobInputs]:
    """Read the arguments of a step: the kind of its job, its outputs, and the job's inputs.

    Raises InputError: an input artifact cannot reach the pods.
    """
    step = json.loads(_argument(arguments, EXECUTOR_INPUT))
    component = from_argument(_argument(arguments, DISTRIBUTED))
    given, elsewhere = inputs_of(component, step, _artifacts(step["inputs"], make))
    inputs = KINDS[component.kind].parse_inputs(**given)
    outputs = {name: first for name, (first, *_) in _artifacts(step["outputs"], make).items()}
    outputs.pop("executor-logs", None)
    with_artifacts = replace(inputs, datasets=elsewhere)  # type: ignore[type-var]
    return component.kind, Returned(step, outputs), with_artifacts


def _argument(arguments: Sequence[str], name: str) -> str:
    return arguments[list(arguments).index(name) + 1]


def _artifacts(described: Mapping[str, Any], make: MakeArtifact) -> dict[str, list[Artifact]]:
    return {
        name: [
            make(
                name=each.get("name", ""),
                uri=each.get("uri", ""),
                metadata=dict(each.get("metadata") or {}),
            )
            for each in entry.get("artifacts") or []
        ]
        for name, entry in (described.get("artifacts") or {}).items()
        if entry.get("artifacts")
    }
