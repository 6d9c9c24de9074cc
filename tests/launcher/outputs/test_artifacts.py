from __future__ import annotations

import hashlib
import json
import math
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from kfp_pytorch.launcher.constants import RUN_ID_LABEL
from kfp_pytorch.launcher.inputs import storage
from kfp_pytorch.launcher.jobs.kubeflowjob.kinds import KUBEFLOW_KINDS
from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.jobs.termination_messages import Export, Outcome, Success, read_messages
from kfp_pytorch.launcher.outputs import artifacts
from kfp_pytorch.launcher.outputs.exports import wrong_export
from kfp_pytorch.launcher.waiting.evidence import Evidence

EXPORT = Export("export", "ab" * 32, {"format": "kfp-pytorch", "classes": ["0", "ü"]})
SAMPLES = ({"instance": [[[0, 5]]], "prediction": 3},)


@dataclass
class Step:
    """A step's output artifacts in a folder, as the executor makes them."""

    root: Path
    evidence: Evidence = field(default_factory=lambda: Evidence(PYTORCH_JOB))

    def __post_init__(self) -> None:
        self.model = dsl.Model(uri=str(self.root / "model" / "model"))
        self.metrics = dsl.Metrics(uri=str(self.root / "metrics"))
        self.curves = dsl.HTML(uri=str(self.root / "curves"))
        self.report = dsl.Markdown(uri=str(self.root / "report"))

    def write(self, success: Success | None, **inputs: Any) -> artifacts.Places:
        kind = KUBEFLOW_KINDS[inputs["kind"]] if "kind" in inputs else PYTORCH_JOB
        parsed = kind.parse_inputs(image="i", namespace="team", **inputs)
        job = kind.build(parsed, job_name="j-1", labels={}, annotations={}, owner=None)
        return artifacts.write_outputs(
            artifacts.Artifacts(self.model, self.metrics, self.curves, self.report),
            self.evidence,
            parsed,
            job,
            Outcome(success=success),
        )


@pytest.fixture
def step(tmp_path: Path) -> Step:
    return Step(tmp_path)


def test_the_model_is_small_and_says_where_the_weights_are(step: Step) -> None:
    success = Success("j-1-master-0", {"accuracy": 0.991}, 2, EXPORT, {}, SAMPLES)
    places = step.write(success, output_uri="pvc://claim/teams/a", key="run-1")
    folder = "pvc://claim/teams/a/run-1/j-1"
    assert places == (f"{folder}/export", folder)
    assert step.model.metadata == {
        "storage_uri": places.storage_uri,
        "format": "kfp-pytorch",
        "job": "j-1",
        "namespace": "team",
        "folder": folder,
        "sha256": "ab" * 32,
        "nodes": 1,
        "processes": 2,
        "metric_accuracy": 0.991,
    }
    content = json.loads(Path(step.model.path).read_text(encoding="utf-8"))
    assert content == {"model": EXPORT.model, "samples": list(SAMPLES)}


def test_the_model_says_which_run_and_which_data_made_it(step: Step) -> None:
    step.evidence.job = {"metadata": {"name": "j-1", "labels": {RUN_ID_LABEL: "0b7a-1"}}}
    kept = dsl.Dataset(uri="s3://a/small", metadata={"storage_uri": "pvc://data/digits"})
    step.write(
        Success("p", export=EXPORT),
        dataset=kept,
        dataset_2=dsl.Dataset(uri="minio://mlpipeline/val"),
        dataset_names=["train"],
        hyperparameters={"epochs": 3, "note": "two\nlines"},
    )
    made_of = {
        "run_id": "0b7a-1",
        "dataset_train": "pvc://data/digits",
        "dataset_2": "s3://mlpipeline/val",
        "hyperparameter_epochs": "3",
    }
    assert made_of.items() <= step.model.metadata.items()
    assert "hyperparameter_note" not in step.model.metadata


def test_the_name_of_an_export_for_triton_is_handed_on(step: Step) -> None:
    step.write(Success("p", export=Export("export", "ab" * 32, {"triton": "digits"})))
    assert step.model.metadata["triton"] == "digits"


def test_a_bucket_of_kfp_is_named_as_kserve_reads_it(step: Step) -> None:
    success = Success("p", export=EXPORT)
    places = step.write(success, output_uri="minio://mlpipeline/jobs", key="r")
    assert places.storage_uri == "s3://mlpipeline/jobs/r/j-1/export"


def test_what_no_metric_can_be_is_left_out_and_said(step: Step) -> None:
    said = {
        "accuracy": 0.9,
        "huge": 1e308,
        "whole": 2**60,
        "minus": -0.0,
        "Präzision @1": 0.5,
        "half \ud800": 1.0,
        "line\n": 2.0,
        "": 3.0,
        "nested": {"a": 1},
        "listed": [1],
        "flag": True,
        "text": "0.5",
        "none": None,
    }
    message = json.dumps({"version": 1, "status": "succeeded", "metrics": said})
    ended = {"exitCode": 0, "message": message}
    status = {"containerStatuses": [{"name": "pytorch", "state": {"terminated": ended}}]}
    pod = {"metadata": {"name": "p"}, "status": status}
    step.write(read_messages([pod]).success)
    kept = {"accuracy", "huge", "whole", "minus", "Präzision @1"}
    assert step.metrics.metadata.keys() == {*kept, "left_out"}
    assert {f"metric_{name}" for name in kept} <= step.model.metadata.keys()
    notes = " ".join(step.evidence.notes)
    assert all(repr(name) in notes for name in said.keys() - kept)
    json.dumps(step.model.metadata, ensure_ascii=False).encode()


def test_metrics_that_are_not_finite_are_left_out_and_said(
    step: Step, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = {"accuracy": 0.5, "loss": math.nan, "best": math.inf, "worst": -math.inf}
    step.write(Success("p", metrics, export=EXPORT))
    left_out = step.metrics.metadata.pop("left_out")
    assert "Metric loss is left out: it ended as nan, not finite. Metric worst" in left_out
    assert step.metrics.metadata == {"accuracy": 0.5}
    said = capsys.readouterr().out
    assert "Metric loss is left out: it ended as nan" in said
    assert "best is left out: it ended as inf" in said
    assert "worst is left out: it ended as -inf" in said
    assert "loss is left out: it ended as nan" in Path(step.report.path).read_text(encoding="utf-8")


def test_the_metrics_artifact_has_content_that_the_ui_can_show(step: Step) -> None:
    step.write(Success("p", {"accuracy": 0.5, "loss": math.nan}, export=EXPORT))
    assert json.loads(Path(step.metrics.path).read_text()) == {"accuracy": 0.5}


@pytest.mark.parametrize(
    ("statuses", "said"),
    [([], "names no containers"), ([{"name": "pytorch", "state": {}}], "pods were gone")],
)
def test_why_the_message_of_training_is_not_known(
    step: Step, statuses: list[Any], said: str
) -> None:
    status = {"phase": "Running", "containerStatuses": statuses}
    step.evidence.pods["j-1-master-0"] = {"metadata": {"name": "j-1-master-0"}, "status": status}
    step.write(None)
    assert said in step.evidence.notes[0]


def test_all_that_is_handed_on_is_strict_json_and_flat(step: Step) -> None:
    model = {"format": None, "scale": math.inf, "nested": {"a": [math.nan]}}
    samples = ({"instance": [math.nan], "prediction": 1},)
    success = Success("p", {"x": math.nan, "y": 1.0}, 1, Export("export", "", model), {}, samples)
    step.write(success)
    for artifact in (step.model, step.metrics):
        json.dumps(artifact.metadata, allow_nan=False)
        assert all(
            isinstance(v, (str, int, float)) and not isinstance(v, bool)
            for v in artifact.metadata.values()
        )
    content = json.loads(Path(step.model.path).read_text(), parse_constant=pytest.fail)
    assert content["model"] == {"format": None, "scale": None, "nested": {"a": [None]}}


def test_a_container_that_said_nothing_still_gives_every_artifact(step: Step) -> None:
    places = step.write(None, output_uri="s3://bucket/p")
    assert places == ("", "s3://bucket/p/j-1")
    assert step.model.metadata == {
        "job": "j-1",
        "namespace": "team",
        "folder": "s3://bucket/p/j-1",
        "nodes": 1,
        "processes": 1,
        "no_export": "training reported no export",
    }
    assert json.loads(Path(step.model.path).read_text()) == {"model": {}, "samples": []}
    assert step.metrics.metadata == {
        "left_out": "Training reported no metric that is a finite number."
    }
    assert "reported no curves" in Path(step.curves.path).read_text()
    assert "wrote no message of its own" in Path(step.report.path).read_text()


CUT = json.dumps({"version": 1, "status": "succeeded", "metrics": {"accuracy": 1}})[2:]


@pytest.mark.parametrize("message", [CUT, '{"status": "succeeded"}', "accuracy=0.9"])
def test_a_message_that_is_not_understood_is_not_passed_over(step: Step, message: str) -> None:
    ended = {"terminated": {"exitCode": 0, "message": message}}
    status = {"containerStatuses": [{"name": "pytorch", "state": ended}]}
    step.evidence.pods["u"] = {"metadata": {"name": "j-1-master-0"}, "status": status}
    step.write(read_messages(step.evidence.pods.values()).success)
    (note,) = step.evidence.notes
    for words in ("of j-1-master-0 was not understood", "2,048 bytes", repr(message[:40])):
        assert words in note
    assert step.model.metadata["no_export"] == note
    assert step.metrics.metadata == {"left_out": note}


CURVES = {"loss": ((0.0, 2.3),)}


@pytest.mark.parametrize(
    ("success", "said"),
    [
        (Success("p"), ["no metrics, no curves, no export", "script.report(", "script.export("]),
        (Success("p", {"a": 1.0}, curves=CURVES), ["no export.", "script.export("]),
        (
            Success("p", {"a": 1.0}, export=EXPORT, samples=SAMPLES),
            ["no curves.", "script.report("],
        ),
        (
            Success("p", export=EXPORT, curves=CURVES, samples=SAMPLES),
            ["no metrics.", "script.report("],
        ),
    ],
)
def test_what_a_script_did_not_report_is_said_in_one_line_with_how_to(
    step: Step, capsys: pytest.CaptureFixture[str], success: Success, said: list[str]
) -> None:
    step.write(success)
    (note,) = step.evidence.notes
    for words in (*said, "from kfp_pytorch.training import script", "help(script)"):
        assert words in note
    assert ("script.export(" in note) == ("script.export(" in said)
    assert " ".join(note.split()) in " ".join(capsys.readouterr().out.split())


def test_who_reports_everything_is_told_nothing(step: Step) -> None:
    step.write(Success("p", {"a": 1.0}, export=EXPORT, curves=CURVES, samples=SAMPLES))
    assert step.evidence.notes == []


def test_an_export_with_nothing_to_ask_it_is_said_before_it_is_deployed(step: Step) -> None:
    step.write(Success("p", {"a": 1.0}, export=EXPORT, curves=CURVES))
    (note,) = step.evidence.notes
    assert "none fits into the termination message of 2,048 bytes" in note
    assert "kserve_predict then needs `requests`" in note


def test_why_training_exported_nothing_is_said_and_handed_on(step: Step) -> None:
    reason = "the model has 7000000000 parameters"
    places = step.write(Success("p", {"a": 1.0}, curves=CURVES, no_export=reason))
    assert places.storage_uri == ""
    assert step.model.metadata["no_export"] == reason
    assert "storage_uri" not in step.model.metadata
    assert step.evidence.notes == [f"Nothing was exported: {reason}"]


def test_metrics_that_did_not_fit_are_counted_and_found(step: Step) -> None:
    step.write(Success("p", {"a": 1.0}, export=EXPORT, curves=CURVES, samples=SAMPLES, left_out=12))
    said = "12 metrics did not fit into the termination message; all are in"
    assert step.evidence.notes == [f"{said} pvc://kfp-pytorch/j-1/metrics.json."]
    assert step.metrics.metadata == {"a": 1.0, "left_out": step.evidence.notes[0]}
    assert "12 metrics did not fit" in Path(step.report.path).read_text()


def test_curves_that_did_not_fit_are_not_called_unreported(step: Step) -> None:
    success = Success(
        "p", {"a": 1.0}, export=EXPORT, samples=SAMPLES, left_out=6, curves_left_out=41
    )
    step.write(success)
    said = (
        "did not fit into the termination message; all are in pvc://kfp-pytorch/j-1/metrics.json."
    )
    assert step.evidence.notes == [f"6 metrics {said}", f"41 curves {said}"]


def test_the_launcher_of_mpi_reports_for_the_processes_that_it_started(step: Step) -> None:
    made = {"kind": "MPIJob", "command": ["mpirun"], "num_nodes": 2, "nproc_per_node": "2"}
    step.write(Success("p", {"a": 1.0}, 1, EXPORT, CURVES, SAMPLES), **made)
    assert step.evidence.notes == []
    assert (step.model.metadata["nodes"], step.model.metadata["processes"]) == (2, 4)


@pytest.mark.parametrize(
    ("ran", "job", "said"),
    [
        (
            3,
            {"nproc_per_node": "2"},
            "Training ran as 3 processes, and the job is for 1 × 2, nodes",
        ),
        (1, {"nproc_per_node": "2"}, "Training ran as 1 process, and the job is for 1 × 2, nodes"),
        (4, {"nproc_per_node": "2", "num_nodes": 2}, ""),
        (3, {"nproc_per_node": "cpu"}, ""),
        (0, {"nproc_per_node": "2"}, ""),
    ],
)
def test_another_number_of_processes_than_the_job_is_for_is_said(
    step: Step, ran: int, job: dict[str, Any], said: str
) -> None:
    step.write(Success("p", {"a": 1.0}, ran, EXPORT, CURVES, SAMPLES), **job)
    assert [note[: len(said)] for note in step.evidence.notes] == [said] * bool(said)


def test_the_newest_checkpoint_is_named(step: Step) -> None:
    step.write(Success("p", checkpoint=260))
    assert step.model.metadata["checkpoint"] == 260
    assert "| Newest checkpoint | step 260 |" in Path(step.report.path).read_text()


@pytest.mark.parametrize(
    "path", ["../../other", "a/./b", "{{x}}", "a\x00b", "/mnt/job/export", "s3://b/export", " "]
)
def test_an_export_that_cannot_be_in_the_job_s_folder_is_named(path: str) -> None:
    folder = storage.parse("pvc://claim/j-1")
    said = wrong_export(Outcome(Success("p", export=Export(path))), folder, "team")
    assert said.startswith(f"Training reported its export at {path!r}")
    assert said.endswith("pvc://claim/j-1")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("none", ""),
        ("no folder", "there is no such folder"),
        ("no model.json", "there is no model.json in it"),
        ("other model.json", "its model.json is not the one that was written"),
        ("no program", "there is no model.pt2 in it"),
        ("longer program", "its model.pt2 is not the one that was written"),
        ("longer triton/m/1/model.onnx", "its triton/m/1/model.onnx is not the one that was"),
    ],
)
def test_where_the_step_can_read_the_claim_an_export_that_is_not_there_or_differs_is_named(
    tmp_path: Path, change: str, said: str
) -> None:
    path = tmp_path / "team/claim/j-1/export"
    path.mkdir(parents=True)
    (path / "model.pt2").write_bytes(b"program")
    files = {"model.pt2": {"bytes": 7, "sha256": hashlib.sha256(b"program").hexdigest()}}
    onnx = path / "triton/m/1/model.onnx"
    onnx.parent.mkdir(parents=True)
    onnx.write_bytes(b"program")
    described = {"files": files, "triton_files": {"triton/m/1/model.onnx": files["model.pt2"]}}
    (path / "model.json").write_text(json.dumps(described))
    export = Export("export", hashlib.sha256((path / "model.json").read_bytes()).hexdigest())
    if change == "no folder":
        shutil.rmtree(path)
    elif change.endswith("model.json"):
        (path / "model.json").unlink()
        if change == "other model.json":
            (path / "model.json").write_text("{}")
    elif change == "no program":
        (path / "model.pt2").unlink()
    elif change == "longer program":
        (path / "model.pt2").write_bytes(b"programx")
    elif change.startswith("longer"):
        onnx.write_bytes(b"programx")
    folder, outcome = storage.parse("pvc://claim/j-1"), Outcome(Success("p", export=export))
    found = wrong_export(outcome, folder, "team", {"KFP_PYTORCH_CLAIMS": str(tmp_path)})
    assert said in found
    assert bool(found) == bool(said)
    assert wrong_export(outcome, folder, "team", {}) == ""


@pytest.mark.parametrize("path", ["export", "export/", "models/best"])
def test_an_export_below_the_job_s_folder_is_where_it_says(step: Step, path: str) -> None:
    success = Success("p", export=Export(path))
    assert wrong_export(Outcome(success), storage.parse("pvc://claim/j-1"), "team") == ""
    assert step.write(success).storage_uri == f"pvc://kfp-pytorch/j-1/{path.strip('/')}"


def test_the_curves_of_the_message_are_drawn(step: Step) -> None:
    step.write(Success("p", curves={"loss": ((0.0, 2.3), (26.0, 0.4))}))
    page = Path(step.curves.path).read_text()
    assert "Curves of j-1" in page
    assert "loss <b>0.4</b> at step 26" in page
