"""The code that a job is given: its ConfigMap, and where the pods have it."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Any

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs.source import Source

PYTHONPATH = "PYTHONPATH"
_NO_KEY = re.compile(r"[^-._a-zA-Z0-9]")
_LONGEST_KEY = 200


def config_map_name(source: Source, job_name: str) -> str:
    """Return the name of the ConfigMap of a job's files."""
    return f"{job_name}-source-{source.digest}"


def config_map(source: Source, job_name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Make the ConfigMap of a job's files."""
    texts, binaries = {}, {}
    for key, path in _keys(source).items():
        content = source.files[path]
        try:
            texts[key] = content.decode()
        except UnicodeDecodeError:
            binaries[key] = base64.b64encode(content).decode()
    return {
        "apiVersion": constants.CONFIG_MAP.api_version,
        "kind": constants.CONFIG_MAP.kind,
        "metadata": {"name": config_map_name(source, job_name), "labels": dict(labels)},
        "immutable": True,
        "data": texts,
        "binaryData": binaries,
    }


def volume_source(source: Source, job_name: str) -> dict[str, Any]:
    """Return the volume that has a job's files at their paths."""
    items = [{"key": key, "path": path} for key, path in _keys(source).items()]
    # A program of any kind can be run, whatever says so of the author's file.
    mode = {"defaultMode": 0o555}
    return {"configMap": {"name": config_map_name(source, job_name), "items": items, **mode}}


def with_python_path(
    source: Source, variables: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return a container's variables with the code first on Python's path.

    Raises InputError: that variable is a reference, which nothing can be put before.
    """
    found = [dict(variable) for variable in variables]
    if not source:
        return found
    for variable in found:
        if variable["name"] == PYTHONPATH:
            if "value" not in variable:
                raise InputError(
                    f"env has {PYTHONPATH} as a reference, and source is put before it: give its "
                    "value as a text, or drop one."
                )
            variable["value"] = f"{constants.SOURCE_MOUNT}:{variable['value']}"
            return found
    return [*found, {"name": PYTHONPATH, "value": constants.SOURCE_MOUNT}]


def _keys(source: Source) -> dict[str, str]:
    """The files' paths by their keys, which may have no slash."""
    return {
        f"{i}-{_NO_KEY.sub('_', path)[-_LONGEST_KEY:]}": path
        for i, path in enumerate(sorted(source.files))
    }
