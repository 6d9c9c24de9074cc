"""A language model is fine-tuned with LoRA through a TrainJob, on two nodes."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import TRAINJOB

pytestmark = [
    pytest.mark.slow,
    pytest.mark.local_cluster,
    pytest.mark.timeout(1200),
    # Its pods import them, and this process does not: that takes seconds.
    pytest.mark.skipif(not (find_spec("trl") and find_spec("peft")), reason="no trl, peft"),
]


def test_a_tiny_model_is_trained_and_exported_as_it_is_served(cluster: Any) -> None:
    ran = cluster.run("fine_tune", num_nodes=2, epochs=2, learning_rate=0.02)
    assert ran.code == 0, ran.stderr
    assert ran.summary["metrics"]["eval_loss"] < 5, "that of chance is the logarithm of 258"
    steps = {step["name"]: step["status"] for step in ran.summary["steps"]}
    assert steps["train-job"] == steps["metric-gate"] == "succeeded"
    assert steps["kserve-deploy"] == "skipped"
    (job,) = (
        j for j in cluster.objects(TRAINJOB) if j["metadata"]["name"].startswith("fine-tune-")
    )
    folder = Path(ran.summary["artifacts"]["checkpoints"]).parent / "export"
    assert json.loads((folder / "model.json").read_text())["format"] == "huggingface"
    assert {"config.json", "model.safetensors"} <= {path.name for path in folder.iterdir()}
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"
    assert job["spec"]["trainer"]["numNodes"] == 2
