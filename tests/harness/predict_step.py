"""Runs the step `kserve_predict` in this process."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kfp_pytorch.launcher.errors import StepError
from kfp_pytorch.launcher.steps.kserve_predict import Outputs, run


@dataclass
class Artifact:
    path: str
    uri: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class Step:
    """Runs `kserve_predict`.

    Attributes:
        url: The server's, where none is given.
        model: The file of the Model's content.
    """

    url: str
    folder: Path
    latencies: dict[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def report(self) -> str:
        return (self.folder / "out" / "predictions").read_text(encoding="utf-8")

    def __call__(self, samples: Any = None, **inputs: Any) -> Outputs:
        """Runs it with samples in the Model's content, or none."""
        if samples is not None:
            self.model.write_text(json.dumps({"model": {}, "samples": samples}))
        latencies = Artifact(str(self.folder / "out" / "latencies"), metadata=self.latencies)
        predictions = Artifact(str(self.folder / "out" / "predictions"))
        given = {"url": self.url, **inputs}
        return run(predictions, latencies, Artifact(str(self.model)), **given)

    def fails(self, kind: type[StepError], samples: Any = None, **inputs: Any) -> str:
        """Runs it, and returns the message that it fails with."""
        with pytest.raises(kind) as failed:
            self(samples, **inputs)
        return failed.value.message
