"""What a kustomization makes, without kustomize: its resources and the ConfigMaps of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
FIELDS = {"apiVersion", "kind", "resources", "configMapGenerator"}


def build(folder: Path) -> list[Object]:
    """The objects. Fails where a file is missing, and at a field that is not understood here."""
    made = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    assert made["kind"] == "Kustomization"
    assert set(made) <= FIELDS, f"{folder}: {set(made) - FIELDS}"
    found: list[Object] = []
    for name in made.get("resources", []):
        path = folder / name
        found += build(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    found += [_config_map(folder, each) for each in made.get("configMapGenerator", [])]
    return found


def _config_map(folder: Path, generator: Object) -> Object:
    options = generator["options"]
    assert options["disableNameSuffixHash"] is True
    files = dict(each.split("=", 1) for each in generator["files"])
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": generator["name"], "labels": options["labels"]},
        "data": {key: (folder / file).read_text() for key, file in files.items()},
    }
