"""One process of the job: calls the component's function as KFP does."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from . import outputs
from .common import COMPONENT, HERE, RANKS, datasets, fetched, read_settings, recorded


def run_rank() -> None:
    """Runs the function in this process, and leaves what rank 0 returns in a file."""
    rank = int(os.environ["RANK"])
    found = call(read_settings(), rank)
    if rank == 0:
        result = Path(os.environ[RANKS], "result.json")
        result.write_text(json.dumps(found), encoding="utf-8")
    leave_group()


def call(settings: dict[str, Any], rank: int) -> dict[str, Any]:
    """Calls the function as KFP would; returns the message of a success."""
    output = os.environ["KFP_PYTORCH_OUTPUT"]
    in_bucket = "://" in output
    if rank == 0 and in_bucket and settings["files"]:
        outputs.check_bucket(output)
    scratch = Path(tempfile.mkdtemp(prefix="outputs-", dir=os.environ[RANKS]))
    # The job's folder belongs to one process. What others write to their paths is left behind.
    place = Path(output) / "outputs" if rank == 0 and not in_bucket else scratch / "outputs"
    place.mkdir(parents=True, exist_ok=True)
    given = executor_input(settings["executor_input"], place, scratch)
    for name in given["outputs"]["artifacts"]:
        outputs.remove(place / name)
    function = getattr(load_component(), settings["function"])
    executor = importlib.import_module("kfp.dsl.executor").Executor(
        executor_input=given, function_to_execute=function
    )
    place_inputs(executor.input_artifacts, given["inputs"].get("artifacts", {}))
    executor.execute()
    if rank:
        return {}
    found = outputs.collected(given, place)
    message = outputs.small(found, outputs.shown(given, place))
    if in_bucket:
        written = [name for name, each in found["artifacts"].items() if each["written"]]
        outputs.upload(place, written, output)
    return {
        "version": 1,
        "status": "succeeded",
        "metrics": {},
        "world_size": int(os.environ["WORLD_SIZE"]),
        "outputs": message,
    }


def executor_input(given: dict[str, Any], place: Path, scratch: Path) -> dict[str, Any]:
    """KFP's description of the step, with the places of this process for what it writes."""
    found: dict[str, Any] = given["outputs"]
    found["outputFile"] = str(scratch / "executor_output.json")
    for name, artifacts in found["artifacts"].items():
        artifacts["artifacts"][0]["uri"] = str(place / name)
    for name, parameter in found["parameters"].items():
        parameter["outputFile"] = str(scratch / "parameters" / name)
    return given


def place_inputs(artifacts: dict[str, Any], described: dict[str, Any]) -> None:
    """Says where this pod has the input artifacts; their URIs stay."""
    uris = datasets()
    for name, found in artifacts.items():
        entries = described[name]["artifacts"]
        for i, artifact in enumerate(found if isinstance(found, list) else [found]):
            kind, _, where = entries[i].get("place", "").partition(":")
            if kind == "file":
                artifact.custom_path = str(HERE / where)
            elif kind == "dataset":
                uri = uris[where]
                artifact.custom_path = str(fetched(where, uri)) if "://" in uri else uri


def load_component() -> Any:
    """The module with the component's function, as KFP makes it."""
    spec = importlib.util.spec_from_file_location("ephemeral_component", HERE / COMPONENT)
    if spec is None or spec.loader is None:
        raise ImportError(COMPONENT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def leave_group() -> None:
    """Leaves the process group that the function joined and did not leave."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(recorded(int(os.environ["RANK"]), run_rank))
