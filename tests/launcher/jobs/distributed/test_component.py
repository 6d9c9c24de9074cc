"""What the pods of a distributed component get, and what they may return."""

from __future__ import annotations

import importlib
import json
import random
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness.wheels import write_wheel

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs.source import LIMIT, read
from kfp_pytorch.launcher.jobs.distributed.component import (
    Distributed,
    from_argument,
    inputs_of,
    to_argument,
)
from kfp_pytorch.launcher.jobs.distributed.program import common, outputs
from kfp_pytorch.launcher.jobs.termination_messages import read_messages

entry = importlib.import_module("kfp_pytorch.launcher.jobs.distributed.program.__main__")

COMPONENT = Distributed("train", "def train(): '{{$.x}} {{{ \\d'\n", [], "pytorch_job", {})
SETTINGS = "kfp_pytorch_distributed.json"
MODULES = ("__init__", "__main__", "common", "fetch", "outputs", "rank")


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
        *("ephemeral_component.py", SETTINGS),
        *(f"kfp_pytorch_distributed/{name}.py" for name in MODULES),
    ]
    assert files["ephemeral_component.py"].decode() == COMPONENT.source
    settings = json.loads(files[SETTINGS])
    assert settings["executor_input"]["inputs"]["parameterValues"] == {"rate": 0.5}
    assert list(settings["executor_input"]["outputs"]["artifacts"]) == ["model"]
    assert job["task_config"] == {"nodeSelector": {"a": "b"}}
    assert job["command"] == ["python3", "-m", "kfp_pytorch_distributed"]
    assert claims == {}


def test_input_artifacts_travel_are_mounted_or_fetched_and_keep_uri_and_metadata(
    tmp_path: Path,
) -> None:
    (tmp_path / "file.bin").write_bytes(b"\0\xff")
    (tmp_path / "folder" / "sub").mkdir(parents=True)
    (tmp_path / "folder" / "sub" / "x.txt").write_text("x")
    (tmp_path / "large").write_bytes(b"x" * (LIMIT + 1))
    given = {
        "file": artifact(tmp_path / "file.bin", "s3://b/file.bin", rows=3),
        "folder": artifact(tmp_path / "folder"),
        "large": artifact(tmp_path / "large", "gs://b/large"),
        "claim": artifact("/absent", storage_uri="pvc://data/set"),
        "bucket": artifact("/absent", storage_uri="minio://data/set"),
        "page": artifact("/absent", storage_uri="https://example.com/page"),
        "nothing": artifact("/absent", "s3://b/no-file"),
    }
    entries = {name: described(each.uri, **each.metadata) for name, each in given.items()}
    _, files, elsewhere = handed(COMPONENT, entries, **given)
    assert files["inputs/file/file.bin"] == b"\0\xff"
    assert files["inputs/folder/folder/sub/x.txt"] == b"x"
    assert {name: each.uri for name, each in elsewhere.items()} == {
        "large": "gs://b/large",
        "claim": "/mnt/kfp-pytorch/dataset/claim/set",
        "bucket": "s3://data/set",
    }
    inputs = json.loads(files[SETTINGS])["executor_input"]["inputs"]["artifacts"]
    found = {name: each["artifacts"][0] for name, each in inputs.items()}
    assert {name: (each["uri"], each.get("place", "")) for name, each in found.items()} == {
        "file": ("s3://b/file.bin", "file:inputs/file/file.bin"),
        "folder": ("minio://b/k", "file:inputs/folder/folder"),
        "large": ("gs://b/large", "dataset:large"),
        "claim": ("pvc://data/set", "dataset:claim"),
        "bucket": ("s3://data/set", "dataset:bucket"),
        "page": ("https://example.com/page", ""),
        "nothing": ("s3://b/no-file", ""),
    }
    assert found["file"]["metadata"] == {"rows": 3}


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


def test_texts_that_kfp_shows_travel_as_far_as_they_fit_the_shortest_first() -> None:
    artifacts = {
        "page": {"metadata": {}, "written": True},
        "text": {"metadata": {}, "written": True},
    }
    result = {"parameters": {"a": 1}, "files": {}, "artifacts": artifacts}
    noise = random.Random(1).randbytes(4000).hex()
    message = outputs.small(result, {"page": "<p>short</p>", "text": noise})
    assert message["artifacts"]["page"]["content"] == "<p>short</p>"
    assert "content" not in message["artifacts"]["text"]
    (packed,) = outputs.small(result, {"page": "<p>long</p>" * 300}).values()
    reported = {"version": 1, "status": "succeeded", "outputs": {"packed": packed}}
    success = read_messages([ended_pod(json.dumps(reported), 0)]).success
    assert success is not None
    assert success.outputs is not None
    assert success.outputs["artifacts"]["page"]["content"] == "<p>long</p>" * 300
    reported["outputs"] = {"packed": packed[:40]}
    damaged = read_messages([ended_pod(json.dumps(reported), 0)]).success
    assert damaged is not None
    assert damaged.outputs is None


def ended_pod(message: str, code: int) -> dict[str, Any]:
    terminated = {"exitCode": code, "message": message}
    status = {"name": "pytorch", "state": {"terminated": terminated}}
    return {"metadata": {"name": "p"}, "status": {"containerStatuses": [status]}}


def test_a_failure_is_written_with_the_end_of_a_long_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFP_PYTORCH_TERMINATION_LOG", str(tmp_path / "log"))
    entry.write_failure(3, "ValueError", "no good", 'ä"' * 3000 + "the end", 12.5)
    text = (tmp_path / "log").read_text()
    assert len(text.encode()) <= 2048
    (failure,) = read_messages([ended_pod(text, 1)]).failures
    assert (failure.rank, failure.type, failure.time) == (3, "ValueError", 12.5)
    assert failure.traceback.endswith("the end")
    entry.write_failure(None, "Terminated", "asked to stop")
    assert read_messages([ended_pod((tmp_path / "log").read_text(), 1)]).failures[0].rank is None


def test_the_first_error_of_the_last_start_of_the_ranks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFP_PYTORCH_TERMINATION_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("KFP_PYTORCH_RANKS", str(tmp_path))

    def fails(words: str) -> None:
        raise ValueError(words)

    for restart, rank in (("0", 2), ("1", 1), ("1", 0)):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restart)
        assert common.recorded(rank, partial(fails, f"{rank} in {restart}")) == 1
    assert entry.conclude(tmp_path, 1, stopped=False) == 1
    (failure,) = read_messages([ended_pod((tmp_path / "log").read_text(), 1)]).failures
    assert (failure.rank, failure.message) == (1, "1 in 1")


@pytest.mark.slow
def test_packages_of_the_component_are_installed_into_a_folder_of_the_pod(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path)
    environ = entry.installed([["--quiet", "--no-index", "--no-deps", str(wheel)]], tmp_path)
    program = "import try_it; print(try_it.__file__)"
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True
    )
    assert ran.stdout.startswith(f"{tmp_path}/packages/"), ran.stderr
    with pytest.raises(subprocess.CalledProcessError):
        entry.installed([["--no-index", "kfp-pytorch-there-is-none"]], tmp_path)
