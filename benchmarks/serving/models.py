"""Exports with fresh weights, as training writes them, and random images for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kfp_pytorch.training.data.datasets import ImageSpec
from kfp_pytorch.training.export import FOLDER, publish
from kfp_pytorch.training.image import export, models
from kfp_pytorch.training.storage.job_folder import LocalFolder


@dataclass(frozen=True)
class Served:
    """A model and what is asked of it."""

    name: str  # as training has it
    shape: tuple[int, int, int]  # of an image
    classes: int
    largest: int  # value of a pixel
    # Of torch, in every server that is compared; 0 for as many as each chooses. Small operations
    # are no faster with several, which wait for each other when another program takes a core.
    threads: int = 0

    @property
    def about(self) -> str:
        return f"{self.threads} thread each" if self.threads else "torch's own number of threads"

    def image(self, seed: int = 0) -> Any:
        generator = np.random.default_rng(seed)
        return generator.integers(0, self.largest + 1, self.shape, dtype=np.uint8)

    def write(self, folder: Path) -> Path:
        """Writes the export, if it is not there, and returns its folder."""
        written = folder / self.name / FOLDER
        if written.exists():
            return written
        torch.manual_seed(0)
        channels, classes = self.shape[0], tuple(map(str, range(self.classes)))
        middle = (self.largest / 2,) * channels
        spec = ImageSpec(self.shape, classes, middle, middle, (0, self.largest))
        model = models.build(self.name, spec, 0).eval()
        short, about = export._short_form(spec), export._preprocessing(spec, 0)
        publish(LocalFolder(written.parent), export._trace(model, spec), lambda _: [], short, about)
        return written


DIGITS = Served("small_cnn", (1, 8, 8), 10, 16, threads=1)
RESNET18 = Served("resnet18", (3, 224, 224), 1000, 255)
RESNET50 = Served("resnet50", (3, 224, 224), 1000, 255)
