"""What a Model's content says to ask: its held-out samples, and its input."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.kserve.predict.forms import Given, Known
from kfp_pytorch.launcher.kserve.predict.protocols.v2 import InputTensor
from kfp_pytorch.launcher.kserve.predict.target import Target
from kfp_pytorch.launcher.runtime.artifact import Artifact

Content = Mapping[str, Any]
"""A Model's content, which is JSON where training made it; empty where it did not."""


def content_of(model: Artifact | None) -> Content:
    """Read a Model's content."""
    try:
        content = json.loads(Path(model.path).read_bytes()) if model else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def predicted(content: Content, target: Target) -> Sequence[Given]:
    """Return the samples with the exported model's answers. Raises InputError: there is none."""
    return _samples(content, target, ("prediction",))


def labelled(content: Content, target: Target) -> Sequence[Given]:
    """Return the samples with the right answers, or else the exported model's own.

    Raises InputError: there is none.
    """
    return _samples(content, target, ("label", "prediction"))


def model_input(content: Content) -> InputTensor | None:
    """Return the model's one input, as its description has it."""
    try:
        (given,) = content["model"]["inputs"]
        return InputTensor(str(given["name"]), str(given["datatype"]))
    except (ValueError, TypeError, KeyError):
        return None


def _samples(content: Content, target: Target, answers: Sequence[str]) -> Sequence[Given]:
    try:
        known = [
            Known(sample["instance"], next(sample[name] for name in answers if name in sample))
            for sample in content["samples"]
        ]
    except (ValueError, TypeError, KeyError, StopIteration):
        known = []
    if not known or target.protocol == "openai":
        raise InputError(
            "There is nothing to ask: the model has no held-out samples (they are left out where "
            "they do not fit into training's termination message, and an imported model has none). "
            'Give `requests`, a list of {"instance": …, "prediction": …}, or in the OpenAI '
            'protocol of {"messages": […], "expected": …}.'
        )
    return known
