"""The names of torchvision's classification models, without the seconds that importing it takes."""

from __future__ import annotations

import difflib
import importlib.util
import re
from pathlib import Path

from kfp_pytorch.training.errors import ConfigError

SMALL_CNN = "small_cnn"
_MODEL = re.compile(r"^@register_model\(\)\n(?:[@ )].*\n)*def (\w+)\(", re.MULTILINE)


def torchvision_models() -> set[str]:
    """The names that its source registers; none where it is not installed."""
    found = importlib.util.find_spec("torchvision")
    files = Path(found.origin).with_name("models").glob("*.py") if found and found.origin else ()
    return {name for file in files for name in _MODEL.findall(file.read_text(encoding="utf-8"))}


def check_image_model(name: str) -> None:
    """Raises ConfigError if there is no such model."""
    if name == SMALL_CNN:
        return
    known = torchvision_models()
    if known and name not in known:
        near = " or ".join(difflib.get_close_matches(name, known, n=3))
        hint = f"did you mean {near}? See" if near else "see"
        raise ConfigError(f"--model is {name!r}; {hint} torchvision.models, or give {SMALL_CNN}")
