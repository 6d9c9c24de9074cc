"""The command of a step as KFP makes it, and what its program has written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

_INPUT = "--executor_input"


def option(command: list[str], name: str) -> str:
    """The value of an option of the command; empty if it has none."""
    return command[command.index(name) + 1] if name in command else ""


def executor_input(command: list[str]) -> dict[str, Any]:
    """What KFP hands to the step: its inputs, and where its outputs belong."""
    found: dict[str, Any] = json.loads(option(command, _INPUT) or "{}")
    return found


def inputs(command: list[str]) -> dict[str, Any]:
    """The input parameters of the step."""
    found: dict[str, Any] = executor_input(command).get("inputs", {}).get("parameterValues", {})
    return found


def with_inputs(command: list[str], values: dict[str, Any]) -> list[str]:
    """Returns the command with other values of the step's input parameters."""
    if _INPUT not in command:
        return command
    at, given = command.index(_INPUT) + 1, executor_input(command)
    given.setdefault("inputs", {})["parameterValues"] = values
    return [*command[:at], json.dumps(given), *command[at + 1 :]]


def _written(outputs: dict[str, Any]) -> dict[str, Any]:
    """Reads the program's output file; empty if it wrote none."""
    path = Path(outputs.get("outputFile", ""))
    written: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return written


def missing_outputs(command: list[str]) -> list[str]:
    """Lists the output parameters without a value.

    KFP's launcher fails over these, but not over an artifact without content:
    https://github.com/kubeflow/pipelines/blob/master/backend/src/v2/component/launcher_v2.go
    """
    wanted = executor_input(command).get("outputs", {})
    given = _written(wanted).get("parameterValues", {})
    return [
        name
        for name, place in wanted.get("parameters", {}).items()
        if name not in given and not Path(place["outputFile"]).is_file()
    ]


def clear_outputs(command: list[str]) -> None:
    """Deletes what an earlier attempt of the step left at the places of its outputs.

    On a cluster each attempt begins in a new container.
    """
    wanted = executor_input(command).get("outputs", {})
    parameters = (place["outputFile"] for place in wanted.get("parameters", {}).values())
    artifacts = (of["artifacts"][0]["uri"] for of in wanted.get("artifacts", {}).values())
    for place in filter(None, (wanted.get("outputFile"), *parameters, *artifacts)):
        path = Path(place)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def outputs(command: list[str]) -> dict[str, Any]:
    """Read the program's output parameters, and its artifacts with their metadata.

    Artifacts that a failed program has written are among them, without metadata.
    """
    wanted = executor_input(command).get("outputs", {})
    written = _written(wanted)
    artifacts = {
        name: declared["artifacts"][0]
        for name, declared in wanted.get("artifacts", {}).items()
        if Path(declared["artifacts"][0]["uri"]).exists()
    }
    for name, entry in written.get("artifacts", {}).items():
        artifacts[name] = artifacts.get(name, {}) | entry["artifacts"][0]
    return {"parameters": written.get("parameterValues", {}), "artifacts": artifacts}
