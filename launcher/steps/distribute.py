"""The step of a distributed component: a job whose rank 0 returns the step's outputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
        outputs = outcome.success.outputs if outcome.success else None
        if outputs is None:
            raise JobFailed(
                f"Job {objects.name(manifest)} succeeded, and what rank 0 returned is not known: "
                "its pod left no termination message, or was gone before it was read. Start the "
                "step again."
            )
        write(self.report, render(evidence, inputs, manifest, outcome))
        folder = inputs.folder(objects.name(manifest)).under("outputs")
        for name, found in outputs.get("artifacts", {}).items():
            self._fill(self.artifacts[name], found, folder.under(name).uri)
        for name, text in outputs.get("files", {}).items():
            file = Path(self.step["outputs"]["parameters"][name]["outputFile"])
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        self._write_executor_output(outputs.get("parameters", {}))

    def _fill(self, artifact: Artifact, found: Mapping[str, Any], uri: str) -> None:
        artifact.metadata.update(found.get("metadata", {}))
        if "uri" in found:
            artifact.uri = found["uri"]
        elif found.get("written"):
            # KFP can upload no file that its step does not have.
            artifact.metadata["storage_uri"] = uri
            write(artifact, json.dumps({"storage_uri": uri}))

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


def name_of(artifact: Any) -> str:
    """The name that KFP gave an artifact."""
    return str(getattr(artifact, "name", ""))


def run(arguments: Sequence[str], make: MakeArtifact) -> None:
    """Runs a component's function in every process of a job, and hands on what rank 0 returned.

    `arguments`: the step's, with KFP's executor input and the component. Raises StepError: as
    `run_job` does, or an input artifact cannot reach the pods.
    """
    step = json.loads(_argument(arguments, EXECUTOR_INPUT))
    component = from_argument(_argument(arguments, DISTRIBUTED))
    given, claims = inputs_of(component, step, _artifacts(step["inputs"], make))
    kind = KINDS[component.kind]
    inputs = replace(kind.parse_inputs(**given), datasets=claims)  # type: ignore[type-var]
    outputs = {name: first for name, (first, *_) in _artifacts(step["outputs"], make).items()}
    outputs.pop("executor-logs", None)
    run_checked(kind, Returned(step, outputs), inputs, _PREPARE.get(component.kind, as_given))


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
