"""Which ConfigMap holds the launcher of this version. Nothing of it is needed in a step."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

import kfp_pytorch
from kfp_pytorch.launcher.constants import PREFIX

# The file in the ConfigMap.
KEY = "launcher"
SHA256_ANNOTATION = f"{PREFIX}/sha256"
_HEAD = re.compile(r"name: \S+-launcher-(\S+)-\w+\n(?:.*\n)*?.*/sha256: (\w+)\n")


@dataclass(frozen=True)
class Reference:
    """Which launcher a step reads."""

    version: str  # of kfp-pytorch
    sha256: str  # of the file

    @property
    def name(self) -> str:
        """The ConfigMap's name."""
        return f"{PREFIX}-launcher-{self.version}-{self.sha256[:10]}"


def manifest_path() -> Path:
    """Returns where the ConfigMap of this version is."""
    return Path(kfp_pytorch.__file__).parent / "manifests" / "launcher.yaml"


@functools.cache
def reference() -> Reference:
    """Returns what `manifests/launcher.yaml` holds: the steps ask for what is installed."""
    with manifest_path().open(encoding="utf-8") as file:
        # The rest is one long line.
        found = _HEAD.search(file.read(4096))
    if not found:
        raise ValueError(f"{manifest_path()} is damaged: it names no launcher.")
    return Reference(version=found[1], sha256=found[2])
