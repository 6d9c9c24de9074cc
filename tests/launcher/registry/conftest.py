"""Registries in the test's own process, and the step that registers to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from harness.registries import kubeflow, mlflow
from harness.registries.serving import Served, serve

from kfp_pytorch.launcher.registry import http
from kfp_pytorch.launcher.steps import register_model
from kfp_pytorch.launcher.steps.register_model import Outputs

RUN_ID = "0b7a2f5e-1111-4222-8333-444455556666"
ROOT = f"minio://mlpipeline/v2/artifacts/train-and-serve/{RUN_ID}"
# As pytorch_job writes it, and KFP adds to it.
METADATA: dict[str, Any] = {
    "display_name": "model",
    "storage_uri": "pvc://kfp-pytorch/r1/digits-1a2b/export",
    "format": "kfp-pytorch",
    "job": "digits-1a2b",
    "namespace": "team",
    "folder": "pvc://kfp-pytorch/r1/digits-1a2b",
    "sha256": "ab" * 32,
    "run_id": RUN_ID,
    "dataset": "s3://data/digits",
    "checkpoint": 390,
    "metric_accuracy": 0.97,
}
CONTENT = {"model": {"format": "kfp-pytorch", "versions": {"torch": "2.8.0"}}, "samples": []}


@dataclass
class Artifact:
    uri: str
    path: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    """What a step that registered left."""

    outputs: Outputs
    registered: dict[str, Any]  # the artifact's metadata


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_FIRST_PAUSE", 0.001)
    for name in register_model.SECRETS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def registry() -> Iterator[Served]:
    with serve(kubeflow.ModelRegistry(), kubeflow.API) as served:
        yield served


@pytest.fixture
def mlflow_server() -> Iterator[Served]:
    with serve(mlflow.Mlflow(), mlflow.API) as served:
        yield served


Register = Callable[..., Done]


@pytest.fixture
def register(tmp_path: Path) -> Register:
    """Runs the step with a Model of pytorch_job; `metadata` changes the model's."""

    def run(metadata: dict[str, Any] | None = None, **inputs: Any) -> Done:
        content = tmp_path / "model"
        content.write_text(json.dumps(CONTENT))
        about = {key: v for key, v in (METADATA | (metadata or {})).items() if v is not None}
        model = Artifact(f"{ROOT}/pytorch-job/1f/model", str(content), about)
        made = tmp_path / "out" / "registered"
        registered = Artifact(f"{ROOT}/register-model/2f/registered", str(made))
        given = {"model_name": "digits", **inputs}
        outputs = register_model.run(model, registered, **given)
        assert json.loads(made.read_text()) == registered.metadata
        return Done(outputs, registered.metadata)

    return run
