"""What the pods of a distributed component get, and what they may return."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs.source import LIMIT, read
from kfp_pytorch.launcher.jobs import distributed
from kfp_pytorch.launcher.jobs.distributed.component import (
    Distributed,
    from_argument,
    inputs_of,
    to_argument,
)
from kfp_pytorch.launcher.jobs.termination_messages import read_messages

COMPONENT = Distributed("train", "def train(): '{{$.x}} {{{ \\d'\n", [], "pytorch_job", {})
SETTINGS = "kfp_pytorch_distributed.json"


def described(uri: str, title: str = "system.Model", **metadata: Any) -> dict[str, Any]:
    return {"artifacts": [{"uri": uri, "type": {"schemaTitle": title}, "metadata": metadata}]}


def step(inputs: dict[str, Any], **outputs: Any) -> dict[str, Any]:
    return {
        "inputs": {
            "parameterValues": {"rate": 0.5, "task_config": {"nodeSelector": {"a": "b"}}},
            "artifacts": inputs,
        },
        "outputs": {"artifacts": outputs, "outputFile": "/tmp/out.json"},
    }


def artifact(path: Path | str, uri: str = "minio://b/k", **metadata: Any) -> Any:
    return SimpleNamespace(path=str(path), uri=uri, metadata=metadata)


def handed(component: Distributed, inputs: dict[str, Any], **artifacts: Any) -> Any:
    given = step(inputs, model=described("minio://b/m"), job_report=described("minio://b/r"))
    given["outputs"]["artifacts"]["executor-logs"] = described("minio://b/logs-2")
    job, claims = inputs_of(component, given, {name: [each] for name, each in artifacts.items()})
    return job, read("source", job["source"]).files, claims


def test_a_component_is_read_as_it_was_written_and_kfp_finds_no_placeholder_in_it() -> None:
    text = to_argument(COMPONENT)
    assert "{{" not in text
    assert from_argument(text) == COMPONENT


def test_the_pods_have_program_component_and_executor_input_and_nothing_of_one_attempt() -> None:
    job, files, claims = handed(COMPONENT, {})
    assert sorted(files) == [
        *("ephemeral_component.py", SETTINGS, "kfp_pytorch_distributed.py"),
    ]
    assert files["ephemeral_component.py"].decode() == COMPONENT.source
    settings = json.loads(files[SETTINGS])
    assert settings["executor_input"]["inputs"]["parameterValues"] == {"rate": 0.5}
    assert list(settings["executor_input"]["outputs"]["artifacts"]) == ["model"]
    assert job["task_config"] == {"nodeSelector": {"a": "b"}}
    assert job["command"] == ["python3", "/mnt/kfp-pytorch/source/kfp_pytorch_distributed.py"]
    assert claims == {}


def test_input_artifacts_travel_are_mounted_or_keep_their_uri(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\0\xff")
    (tmp_path / "folder" / "sub").mkdir(parents=True)
    (tmp_path / "folder" / "sub" / "x.txt").write_text("x")
    names = ("file", "folder", "claim", "bucket", "nothing")
    _, files, claims = handed(
        COMPONENT,
        {name: described("minio://b/k") for name in names},
        file=artifact(tmp_path / "file"),
        folder=artifact(tmp_path / "folder"),
        claim=artifact("/absent", storage_uri="pvc://data/set"),
        bucket=artifact("/absent", storage_uri="s3://data/set"),
        nothing=artifact("/absent"),
    )
    assert files["inputs/file"] == b"\0\xff"
    assert files["inputs/folder/sub/x.txt"] == b"x"
    assert claims["claim"].claim is not None
    inputs = json.loads(files[SETTINGS])["executor_input"]["inputs"]["artifacts"]
    assert {name: each["artifacts"][0]["uri"] for name, each in inputs.items()} == {
        "file": "kfp-pytorch-file:inputs/file",
        "folder": "kfp-pytorch-file:inputs/folder",
        "claim": "kfp-pytorch-dataset:claim",
        "bucket": "s3://data/set",
        "nothing": "minio://b/k",
    }


def test_an_input_artifact_that_cannot_travel_is_refused_by_name_size_and_way_out(
    tmp_path: Path,
) -> None:
    (tmp_path / "data").write_bytes(b"x" * (LIMIT + 1))
    with pytest.raises(InputError, match=r"'data' has 1,048,577 bytes.*1,048,576.*storage_uri"):
        handed(COMPONENT, {"data": described("minio://b/k")}, data=artifact(tmp_path / "data"))


def test_an_authors_own_files_lie_beside_the_component_and_a_claim_is_refused() -> None:
    own = Distributed(*("train", "", [], "pytorch_job"), {"source": {"files": {"p/a.py": "1"}}})
    assert handed(own, {})[1]["p/a.py"] == b"1"
    claim = Distributed(*("train", "", [], "pytorch_job"), {"source": {"uri": "pvc://code"}})
    with pytest.raises(InputError, match=r"put this code into the image"):
        handed(claim, {})
    taken = {"source": {"files": {"ephemeral_component.py": ""}}}
    with pytest.raises(
        InputError, match=r"'ephemeral_component\.py', which a distributed component"
    ):
        handed(Distributed("train", "", [], "pytorch_job", taken), {})


@pytest.fixture(scope="module")
def program() -> ModuleType:
    """The program of the pods."""
    path = Path(distributed.__file__).with_name("program.py")
    spec = importlib.util.spec_from_file_location("pods_program", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def returned(program: ModuleType, folder: Path, output: dict[str, Any]) -> dict[str, Any]:
    (folder / "out.json").write_text(json.dumps(output))
    (folder / "text").write_text("written")
    given = {
        "outputs": {
            "outputFile": str(folder / "out.json"),
            "parameters": {"text": {"outputFile": str(folder / "text")}},
        }
    }
    found = program.collected(given, folder / "outputs")
    assert isinstance(found, dict)
    return found


def outputs_of(folder: Path, **metadata: Any) -> dict[str, Any]:
    uri = str(folder / "outputs" / "model")
    return {"model": {"artifacts": [{"name": "n", "uri": uri, "metadata": metadata}]}}


def test_rank_0_returns_values_written_texts_and_where_artifacts_are(
    program: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "model").write_text("weights")
    artifacts = outputs_of(tmp_path, accuracy=0.5)
    found = returned(program, tmp_path, {"parameterValues": {"a": [1]}, "artifacts": artifacts})
    assert found == {
        "parameters": {"a": [1]},
        "files": {"text": "written"},
        "artifacts": {"model": {"metadata": {"accuracy": 0.5}, "written": True}},
    }


def test_outputs_that_no_message_holds_or_that_kfp_refuses_are_refused_by_name(
    program: ModuleType, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"'long' alone 3,002; .* at most 1,928"):
        returned(program, tmp_path, {"parameterValues": {"long": "x" * 3000, "short": "y"}})
    with pytest.raises(ValueError, match="'model' is or holds a number that is not finite"):
        returned(program, tmp_path, {"artifacts": outputs_of(tmp_path, loss=float("nan"))})


def test_a_failure_is_written_with_the_end_of_a_long_traceback(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFP_PYTORCH_TERMINATION_LOG", str(tmp_path / "log"))
    program.write_failure(3, "ValueError", "no good", 'ä"' * 3000 + "the end", 12.5)
    text = (tmp_path / "log").read_text()
    assert len(text.encode()) <= 2048
    terminated = {"exitCode": 1, "message": text}
    status = {"name": "pytorch", "state": {"terminated": terminated}}
    pod = {"metadata": {"name": "p"}, "status": {"containerStatuses": [status]}}
    (failure,) = read_messages([pod]).failures
    assert (failure.rank, failure.type, failure.time) == (3, "ValueError", 12.5)
    assert failure.traceback.endswith("the end")
