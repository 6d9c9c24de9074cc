"""What a function of a distributed component is called with, and what of it the step hands on."""

# No `from __future__ import annotations`: kfp reads the annotations, Optional among them.
# ruff: noqa: UP045
import json
from pathlib import Path
from typing import Any, List, NamedTuple, Optional  # noqa: UP035 - what KFP's header imports

import pytest
from harness.distributed import Caller, RankFailed
from kfp import dsl
from kfp.dsl import (
    HTML,
    Artifact,
    ClassificationMetrics,
    Dataset,
    Input,
    InputPath,
    Markdown,
    Metrics,
    Model,
    Output,
    OutputPath,
)

from kfp_pytorch.components import distribute

TEXT = 'it\'s "q" \\ \\n $(X) $$ $HOME `x` {{}} {{x}} {\u007bä✨ \n\t\r\n --foo=1'


@pytest.fixture
def caller(hands: Any, kube: Any, quick: Any, tmp_path: Path) -> Caller:
    return Caller(hands, kube, quick, tmp_path)


@dsl.component(base_image="torch")
def echo(
    text: str,
    whole: int,
    real: float,
    truth: bool,
    items: list,
    table: dict,
    written: OutputPath(str),
    default: str = 'it\'s "ä" {{x}}',
    no_items: list = [],  # noqa: B006
    more: Optional[dict] = None,
    nothing: Optional[str] = None,
) -> NamedTuple("Out", text=str, whole=int, real=float, truth=bool, items=list, table=dict):
    assert (default, no_items, more, nothing) == ('it\'s "ä" {{x}}', [], None, None)
    with open(written, "w", encoding="utf-8", newline="") as file:  # noqa: PTH123
        file.write(text)
    return (text, whole + 1, real, not truth, items, table)


def test_parameters_of_each_type_arrive_and_return_byte_for_byte(caller: Caller) -> None:
    table = {TEXT: [TEXT, 1, 0.5, True, {"": []}]}
    called = caller.call(
        distribute(echo), text=TEXT, whole=2.0, real=0.25, truth=False, items=[TEXT, 3.0],
        table=table,
    )  # fmt: skip
    assert called.parameters == {
        "text": TEXT, "whole": 3, "real": 0.25, "truth": True, "items": [TEXT, 3], "table": table,
        "written": TEXT,
    }  # fmt: skip


@dsl.component(base_image="torch")
def reads(
    table: Input[Dataset],
    folder: Input[Artifact],
    claimed: Input[Model],
    stored: Input[Dataset],
    several: Input[List[Model]],  # noqa: UP006
    by_path: InputPath("Dataset"),
    absent: Optional[Input[Dataset]] = None,
) -> dict:
    from pathlib import Path

    assert absent is None
    return {
        "table": [Path(table.path).name, Path(table.path).read_text(), table.metadata["rows"]],
        "folder": sorted(str(p.relative_to(folder.path)) for p in Path(folder.path).rglob("*")),
        "claimed": [claimed.uri, Path(claimed.path).name, Path(claimed.path).read_text()],
        "stored": [stored.uri, Path(stored.path).name],
        "several": [Path(each.path).read_text() for each in several],
        "by_path": Path(by_path).read_text(),
    }


def test_input_artifacts_have_their_files_names_uris_and_metadata(caller: Caller) -> None:
    kept = caller.folder / "kept"
    for name in ("a.csv", "b/deep/x.bin", "b/y", "c", "d/model", "e/model"):
        (kept / name).parent.mkdir(parents=True, exist_ok=True)
        (kept / name).write_text(f"content of {name}")

    def artifact(name: str, **metadata: Any) -> dict[str, Any]:
        title = {"schemaTitle": "system.Dataset"}
        return {"name": name, "uri": str(kept / name), "type": title, "metadata": metadata}

    on_claim = caller.folder / "pod" / "dataset" / "claimed" / "models" / "m.pt"
    on_claim.parent.mkdir(parents=True)
    on_claim.write_text("on a claim")
    called = caller.call(
        distribute(reads),
        {
            "table": artifact("a.csv", rows=3.0),
            "folder": artifact("b"),
            "claimed": artifact("c", storage_uri="pvc://kfp-pytorch/models/m.pt"),
            "stored": artifact("c", storage_uri="s3://bucket/data/set.parquet"),
            "several": [artifact("d/model"), artifact("e/model")],
            "by_path": artifact("c"),
        },
    )
    found = called.parameters["Output"]
    assert found["table"] == ["a.csv", "content of a.csv", 3]
    assert found["folder"] == ["deep", "deep/x.bin", "y"]
    assert found["claimed"] == ["pvc://kfp-pytorch/models/m.pt", "m.pt", "on a claim"]
    assert found["stored"] == ["s3://bucket/data/set.parquet", "set.parquet"]
    assert found["several"] == ["content of d/model", "content of e/model"]
    assert found["by_path"] == "content of c"


@dsl.component(base_image="torch")
def where(data: Input[Dataset]) -> str:
    return data.uri


def test_pods_that_read_google_cloud_storage_have_its_key(caller: Caller) -> None:
    title = {"schemaTitle": "system.Dataset"}
    data = {"uri": "minio://b/k", "type": title, "metadata": {"storage_uri": "gs://bucket/data"}}
    called = caller.call(distribute(where, output_secret="gcs"), {"data": data})
    assert called.parameters == {"Output": "gs://bucket/data"}
    spec = called.job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    assert {"secretName": "gcs"} in [each.get("secret") for each in spec["volumes"]]
    names = [each["name"] for each in spec["containers"][0]["env"]]
    assert "GOOGLE_APPLICATION_CREDENTIALS" in names


@dsl.component(base_image="torch")
def writes(
    model: Output[Model],
    folder: Output[Dataset],
    metrics: Output[Metrics],
    matrix: Output[ClassificationMetrics],
    page: Output[HTML],
    text: Output[Markdown],
    moved: Output[Artifact],
    elsewhere: Output[Artifact],
    by_path: OutputPath("Dataset"),
) -> Dataset:
    import tempfile
    from pathlib import Path

    Path(model.path).write_text("weights")
    model.metadata["framework"] = "torch"
    Path(folder.path, "deep").mkdir(parents=True)
    Path(folder.path, "deep", "x").write_text("x")
    metrics.log_metric("loss", 0.5)
    classes = [f"class {i}" for i in range(20)]
    matrix.log_confusion_matrix(classes, [[i * j for i in range(20)] for j in range(20)])
    Path(page.path).write_text("<h1>ä</h1>")
    Path(text.path).write_text("".join(f"{i * 7919 % 10007} " for i in range(5000)))
    Path(by_path).write_text("by path")
    other = Path(tempfile.mkdtemp(), "other")
    other.write_text("moved")
    moved.set_path(str(other))
    elsewhere.uri = "s3://bucket/elsewhere"
    return "returned"


def test_output_artifacts_are_in_the_jobs_folder_and_what_kfp_shows_is_in_the_step(
    caller: Caller,
) -> None:
    called = caller.call(distribute(writes, output_uri="pvc://kfp-pytorch/runs"))
    folder = f"pvc://kfp-pytorch/runs/{called.job['metadata']['name']}/outputs"
    metadata = {name: each["metadata"] for name, each in called.artifacts.items()}
    assert metadata["model"] == {"framework": "torch", "storage_uri": f"{folder}/model"}
    assert metadata["metrics"] == {"loss": 0.5}
    rows = metadata["matrix"]["confusionMatrix"]["rows"]
    assert rows[19]["row"][19] == 361
    for name in ("folder", "moved", "by_path", "Output"):
        assert metadata[name] == {"storage_uri": f"{folder}/{name}"}
        assert json.loads(called.contents[name]) == {"storage_uri": f"{folder}/{name}"}
    assert called.artifacts["elsewhere"]["uri"] == "s3://bucket/elsewhere"
    assert metadata["elsewhere"] == {}
    assert called.contents["page"] == "<h1>ä</h1>"
    assert f"It is at `{folder}/text`" in called.contents["text"]
    assert "| loss | 0.5 |" in called.contents["job_report"]
    kept = caller.folder / "pod" / "output" / folder.removeprefix("pvc://kfp-pytorch/")
    assert (kept / "folder" / "deep" / "x").read_text() == "x"
    assert [(kept / name).read_text() for name in ("moved", "by_path", "Output")] == [
        "moved", "by path", "returned",
    ]  # fmt: skip


@dsl.component(base_image="torch")
def hands_on(model: Input[Model]) -> Model:
    return model


def test_an_input_that_is_returned_keeps_its_file_and_place(caller: Caller) -> None:
    kept = caller.folder / "pod" / "dataset" / "model" / "m.pt"
    kept.parent.mkdir(parents=True)
    kept.write_text("weights")
    title = {"schemaTitle": "system.Model"}
    given = {
        "uri": "minio://b/k",
        "type": title,
        "metadata": {"storage_uri": "pvc://kfp-pytorch/m.pt"},
    }
    called = caller.call(distribute(hands_on), {"model": given})
    assert called.artifacts["Output"]["metadata"]["storage_uri"] == "pvc://kfp-pytorch/m.pt"
    assert called.artifacts["Output"]["uri"].startswith(str(caller.folder))
    assert kept.read_text() == "weights"


@dsl.component(base_image="torch")
def told(status: dsl.PipelineTaskFinalStatus, word: str = "x") -> str:
    return f"{status.state} of {status.pipeline_task_name}: {status.error_message}"


def test_a_task_of_an_exit_handler_is_told_how_the_run_ended(caller: Caller) -> None:
    ended = {"state": "FAILED", "pipelineTaskName": "t", "error": {"code": 9, "message": "no"}}
    called = caller.call(distribute(told), status=ended)
    assert called.parameters == {"Output": "FAILED of t: no"}


def test_files_that_the_component_embeds_are_there(caller: Caller, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "embedded_words.py").write_text("WORD = 'embedded ä'\n")

    @dsl.component(base_image="torch", embedded_artifact_path=str(tmp_path / "lib"))
    def uses(files: dsl.EmbeddedInput[Artifact]) -> str:
        from pathlib import Path

        import embedded_words

        return embedded_words.WORD + Path(files.path, "embedded_words.py").name

    called = caller.call(distribute(uses))
    assert called.parameters == {"Output": "embedded ä" + "embedded_words.py"}


@dsl.component(base_image="torch")
def fails(how: str, metrics: Output[Metrics], text: OutputPath(str)) -> list:
    import sys
    from pathlib import Path

    match how:
        case "raises":
            raise KeyError(f"no {how} ä")
        case "exits":
            sys.exit(0)
        case "returns another type":
            return "text"
        case "no number":
            metrics.log_metric("loss", float("nan"))
        case "none":
            metrics.metadata["loss"] = None
        case "no text":
            Path(text).write_bytes(b"\xff")
        case "large":
            return [i * 7919 % 10007 for i in range(3000)]
    return []


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raises", "no raises ä"),
        ("exits", "ended its process by sys.exit(0) and returned nothing"),
        ("returns another type", "want type <class 'list'>"),
        ("no number", "output 'metrics' is or holds a number that is not finite"),
        ("none", "the metadata 'loss' of output 'metrics' is None"),
        ("no text", "output 'text' is no text in UTF-8"),
        ("large", "a distributed component hands on at most 1,928. Write what is larger into"),
    ],
)
def test_what_the_step_cannot_hand_on_fails_rank_0_by_name(
    caller: Caller, how: str, words: str
) -> None:
    with pytest.raises(RankFailed) as failed:
        caller.call(distribute(fails), how=how)
    assert words in failed.value.record["message"]
    assert failed.value.record["rank"] == 0


def test_many_outputs_that_compress_well_are_handed_on(caller: Caller) -> None:
    @dsl.component(base_image="torch")
    def many() -> dict:
        return {f"layer_{i}": [0.5, i] for i in range(300)}

    called = caller.call(distribute(many))
    assert called.parameters == {"Output": {f"layer_{i}": [0.5, i] for i in range(300)}}
    assert len(called.message) <= 2048
