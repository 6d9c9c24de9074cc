"""From a component and what KFP hands its step to the inputs of a job."""

from __future__ import annotations

import copy
import json
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_pytorch.launcher.constants import SOURCE_MOUNT
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import datasets, readers, source
from kfp_pytorch.launcher.inputs.datasets import DataSet
from kfp_pytorch.launcher.runtime.artifact import Artifact

PROGRAM = "kfp_pytorch_distributed.py"
SETTINGS = "kfp_pytorch_distributed.json"
COMPONENT = "ephemeral_component.py"
# KFP has this argument, and beside it ours.
EXECUTOR_INPUT, DISTRIBUTED = "--executor_input", "--distributed"
# The output that tells what ran; its URI is the step's identity, for a component may have no other.
REPORT = "job_report"
COMMAND = ["python3", f"{SOURCE_MOUNT}/{PROGRAM}"]
# Set by `distribute` itself.
OWN_INPUTS = ("command", "args", "hyperparameters", "dataset_names", "task_config")
# Their artifacts are all metadata.
_WITHOUT_FILES = ("system.Metrics", "system.ClassificationMetrics")


@dataclass(frozen=True)
class Distributed:
    """A component that runs in every process of a job.

    Attributes:
        function: The function's name.
        source: The module with the function, as KFP makes it.
        install: The arguments of each `pip install` of the component.
        kind: The step whose job it is, such as `pytorch_job`.
        inputs: The inputs of that job, as an author gives them.
    """

    function: str
    source: str
    install: list[list[str]]
    kind: str
    inputs: dict[str, Any]


def to_argument(component: Distributed) -> str:
    """Write a component as the argument of its step."""
    text = json.dumps(vars(component), ensure_ascii=False, sort_keys=True)
    # KFP fills in what is between two braces. In JSON a brace can be written in another way, which
    # is needed in texts only: two of them that are not in one never follow each other.
    return text.replace("{{", "{\\u007b")


def from_argument(text: str) -> Distributed:
    """Read a component from the argument of its step."""
    return Distributed(**json.loads(text))


def inputs_of(
    component: Distributed, step: Mapping[str, Any], artifacts: Mapping[str, Sequence[Artifact]]
) -> tuple[dict[str, Any], dict[str, DataSet]]:
    """Return the inputs of the job, and the claims of input artifacts that its pods mount.

    `step`: KFP's executor input. `artifacts`: the step's input artifacts, by the input's name.
    Raises InputError: the pods cannot have an artifact.
    """
    given = source.read("source", component.inputs.get("source") or {})
    if given.claim:
        raise InputError(
            f"source is {given.claim.uri!r}; a distributed component takes files along, and its "
            "pods mount one source: put this code into the image."
        )
    made = _executor_input(step)
    files: dict[str, bytes] = {}
    claims: dict[str, DataSet] = {}
    for name, several in artifacts.items():
        for i, artifact in enumerate(several):
            _place(
                f"{name}_{i}" if i else name,
                artifact,
                made["inputs"]["artifacts"][name],
                i,
                files,
                claims,
            )
    settings = {
        "function": component.function,
        "install": component.install,
        "executor_input": made,
        "files": any(map(_has_file, made["outputs"]["artifacts"].values())),
    }
    own = {
        PROGRAM: pkgutil.get_data(__package__, "program.py") or b"",
        COMPONENT: component.source.encode(),
        SETTINGS: json.dumps(settings, sort_keys=True).encode(),
    }
    for path in {*own} & {*given.files}:
        raise InputError(f"source has a file {path!r}, which a distributed component has too.")
    found = {**given.files, **files, **own}
    source.check(
        "The component with its input artifacts",
        {path: len(content) for path, content in found.items()},
    )
    job = {
        **component.inputs,
        "command": COMMAND,
        "task_config": step["inputs"].get("parameterValues", {}).get("task_config"),
        "source": {"files": {path: source.as_json(content) for path, content in found.items()}},
    }
    return job, claims


def _executor_input(step: Mapping[str, Any]) -> dict[str, Any]:
    """KFP's executor input without what is the step's own."""
    made = copy.deepcopy(dict(step))
    inputs, outputs = made.setdefault("inputs", {}), made.setdefault("outputs", {})
    inputs.setdefault("artifacts", {})
    parameters = inputs.get("parameterValues", {})
    parameters.pop("task_config", None)
    # A function of an integer may count with it: KFP's backend writes 1 for 1.0 too.
    inputs["parameterValues"] = readers.with_integers(parameters)
    outputs.setdefault("parameters", {})
    artifacts = outputs.setdefault("artifacts", {})
    # Of every attempt of a step another.
    for name in (REPORT, "executor-logs"):
        artifacts.pop(name, None)
    return made


def _has_file(artifacts: Mapping[str, Any]) -> bool:
    title = artifacts["artifacts"][0].get("type", {}).get("schemaTitle", "")
    return title not in _WITHOUT_FILES


def _place(
    name: str,
    artifact: Artifact,
    described: dict[str, Any],
    index: int,
    files: dict[str, bytes],
    claims: dict[str, DataSet],
) -> None:
    """Say where the pods have an input artifact: on a claim, among the files, or at its URI."""
    entry = described["artifacts"][index]
    at = datasets.by_name({datasets.SLOTS[0]: artifact}, [name])[name]
    if at.claim:
        claims[name] = at
        entry["uri"] = f"kfp-pytorch-dataset:{name}"
        return
    if artifact.metadata.get("storage_uri"):
        entry["uri"] = at.uri
        return
    content = dict(_content(name, Path(artifact.path)))
    if content:
        files.update({f"inputs/{path}": each for path, each in content.items()})
        entry["uri"] = f"kfp-pytorch-file:inputs/{name}"


def _content(name: str, path: Path) -> Iterator[tuple[str, bytes]]:
    """An artifact's files, as KFP has put them into the step's pod."""
    found = (
        {name: path}
        if path.is_file()
        else {
            f"{name}/{each.relative_to(path).as_posix()}": each
            for each in (sorted(path.rglob("*")) if path.is_dir() else [])
            if each.is_file()
        }
    )
    size = sum(each.stat().st_size for each in found.values())
    if size > source.LIMIT:
        raise InputError(
            f"The input artifact {name!r} has {size:,} bytes, which KFP has put into this step's "
            f"pod only; the job's pods are handed at most {source.LIMIT:,}. Write it to a claim, "
            "and its URI, pvc://CLAIM/path, into the artifact's metadata as storage_uri: the pods "
            "then mount it. Or hand its URI over as a parameter."
        )
    for inside, each in found.items():
        yield inside, each.read_bytes()
