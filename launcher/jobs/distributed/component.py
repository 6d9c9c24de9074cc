"""From a component and what KFP hands its step to the inputs of a job."""

from __future__ import annotations

import copy
import json
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import datasets, readers, source
from kfp_pytorch.launcher.inputs.datasets import DataSet
from kfp_pytorch.launcher.runtime.artifact import Artifact

PROGRAM = "kfp_pytorch_distributed"
_MODULES = ("__init__", "__main__", "common", "fetch", "outputs", "rank")
SETTINGS = f"{PROGRAM}.json"
COMPONENT = "ephemeral_component.py"
# KFP has this argument, and beside it ours.
EXECUTOR_INPUT, DISTRIBUTED = "--executor_input", "--distributed"
# The output that tells what ran; its URI is the step's identity, for a component may have no other.
REPORT = "job_report"
# The files are first on Python's path.
COMMAND = ["python3", "-m", PROGRAM]
# Set by `distribute` itself.
OWN_INPUTS = ("command", "args", "hyperparameters", "dataset_names", "task_config")
# Where a pod can read an artifact itself.
_BUCKETS = ("s3://", "gs://")
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
    """Return the inputs of the job, and the input artifacts that lie on a claim or in a bucket.

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
    elsewhere: dict[str, DataSet] = {}
    for name, several in artifacts.items():
        for i, artifact in enumerate(several):
            entry = made["inputs"]["artifacts"][name]["artifacts"][i]
            _place(f"{name}-{i}" if i else name, artifact, entry, files, elsewhere)
    settings = {
        "function": component.function,
        "install": component.install,
        "executor_input": made,
        "files": any(map(_has_file, made["outputs"]["artifacts"].values())),
    }
    own = {
        **{f"{PROGRAM}/{name}.py": _module(name) for name in _MODULES},
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
    return job, elsewhere


def _module(name: str) -> bytes:
    return pkgutil.get_data(f"{__package__}.program", f"{name}.py") or b""


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
    entry: dict[str, Any],
    files: dict[str, bytes],
    elsewhere: dict[str, DataSet],
) -> None:
    """Say where the pods have an input artifact: on a claim, in a bucket, or among the files."""
    at = datasets.by_name({datasets.SLOTS[0]: artifact}, [name])[name]
    stored, path = artifact.metadata.get("storage_uri"), Path(artifact.path)
    if stored:
        entry["uri"] = at.claim.uri if at.claim else at.uri
    found = {} if stored else _found(path)
    size = sum(each.stat().st_size for each in found.values())
    in_bucket = entry["uri"].startswith(_BUCKETS)
    if at.claim or (in_bucket and (stored or size > source.LIMIT)):
        # The program has the metadata with the URI.
        elsewhere[name] = replace(at, metadata={})
        entry["place"] = f"dataset:{name}"
        return
    if size > source.LIMIT:
        raise InputError(
            f"The input artifact {name!r} has {size:,} bytes, which KFP has put into this step's "
            f"pod only; the job's pods are handed at most {source.LIMIT:,}. Write it to a claim, "
            "and its URI, pvc://CLAIM/path, into the artifact's metadata as storage_uri: the pods "
            "then mount it. Or hand its URI over as a parameter."
        )
    if found:
        here = f"inputs/{name}/{path.name}"
        files.update({f"{here}{inside}": each.read_bytes() for inside, each in found.items()})
        entry["place"] = f"file:{here}"


def _found(path: Path) -> dict[str, Path]:
    """An artifact's files, as KFP has put them into the step's pod, by their paths below it."""
    if path.is_file():
        return {"": path}
    within = sorted(path.rglob("*")) if path.is_dir() else []
    return {f"/{each.relative_to(path).as_posix()}": each for each in within if each.is_file()}
