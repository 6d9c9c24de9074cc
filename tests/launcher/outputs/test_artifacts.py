from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from kfp_pytorch.launcher.jobs.pytorchjob.inputs import parse_inputs
from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.jobs.pytorchjob.manifest import manifest
from kfp_pytorch.launcher.jobs.termination_messages import Export, Outcome, Success, read_messages
from kfp_pytorch.launcher.outputs import artifacts
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
        parsed = parse_inputs(image="i", namespace="team", **inputs)
        job = manifest(parsed, job_name="j-1", labels={}, annotations={}, owner=None)
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
        "metric_accuracy": 0.991,
    }
    content = json.loads(Path(step.model.path).read_text(encoding="utf-8"))
    assert content == {"model": EXPORT.model, "samples": list(SAMPLES)}


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
    assert step.metrics.metadata.keys() == kept
    assert {f"metric_{name}" for name in kept} <= step.model.metadata.keys()
    notes = " ".join(step.evidence.notes)
    assert all(repr(name) in notes for name in said.keys() - kept)
    json.dumps(step.model.metadata, ensure_ascii=False).encode()


def test_metrics_that_are_not_finite_are_left_out_and_said(
    step: Step, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = {"accuracy": 0.5, "loss": math.nan, "best": math.inf, "worst": -math.inf}
    step.write(Success("p", metrics, export=EXPORT))
    assert step.metrics.metadata == {"accuracy": 0.5}
    said = capsys.readouterr().out
    assert "Metric loss ended as nan: training diverged" in said
    assert "best ended as inf" in said
    assert "worst ended as -inf" in said
    assert "loss ended as nan" in Path(step.report.path).read_text(encoding="utf-8")


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
    assert places == ("s3://bucket/p/j-1", "s3://bucket/p/j-1")
    assert json.loads(Path(step.model.path).read_text()) == {"model": {}, "samples": []}
    assert step.metrics.metadata == {}
    assert "reported no curves" in Path(step.curves.path).read_text()
    assert "wrote no message of its own" in Path(step.report.path).read_text()


CUT = json.dumps({"version": 1, "status": "succeeded", "metrics": {"accuracy": 1}})[2:]


@pytest.mark.parametrize("message", [CUT, '{"status": "succeeded"}', "accuracy=0.9"])
def test_a_message_that_is_not_understood_is_not_passed_over(step: Step, message: str) -> None:
    ended = {"terminated": {"exitCode": 0, "message": message}}
    status = {"containerStatuses": [{"name": "pytorch", "state": ended}]}
    step.evidence.pods["u"] = {"metadata": {"name": "j-1-master-0"}, "status": status}
    step.write(read_messages(step.evidence.pods.values()).success)
    note = step.evidence.notes[0]
    for words in ("of j-1-master-0 was not understood", "2,048 bytes", repr(message[:40])):
        assert words in note


@pytest.mark.parametrize("path", ["../../other", "a/./b", "{{x}}", "a\x00b"])
def test_an_export_outside_the_job_s_folder_is_not_handed_on(step: Step, path: str) -> None:
    assert step.write(Success("p", export=Export(path))).storage_uri == "pvc://kfp-pytorch/j-1"
    assert any("storage_uri is the job's folder" in note for note in step.evidence.notes)


def test_the_curves_of_the_message_are_drawn(step: Step) -> None:
    step.write(Success("p", curves={"loss": ((0.0, 2.3), (26.0, 0.4))}))
    page = Path(step.curves.path).read_text()
    assert "Curves of j-1" in page
    assert "loss <b>0.4</b> at step 26" in page
