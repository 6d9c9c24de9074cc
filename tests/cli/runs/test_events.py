"""What a run tells becomes progress, a summary and an error that a person can act on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kfp_pytorch.cli.runs import screen, summary
from kfp_pytorch.cli.runs.events import Follower, StepResult, TerminalProgress
from kfp_pytorch.client.packages.find import Package
from kfp_pytorch.local.kfp.step import EVENT_MARK

SPEC = {
    "pipelineInfo": {"name": "p"},
    "root": {},
    "components": {
        "comp-train": {
            "outputDefinitions": {
                "artifacts": {
                    "metrics": {"artifactType": {"schemaTitle": "system.Metrics"}},
                    "curves": {"artifactType": {"schemaTitle": "system.HTML"}},
                    "model": {"artifactType": {"schemaTitle": "system.Model"}},
                }
            }
        }
    },
    "deploymentSpec": {
        "executors": {"exec-train": {"container": {}}, "exec-deploy": {"container": {}}}
    },
}
PACKAGE = Package("p", "", SPEC, {})


class Recorder:
    def __init__(self):
        self.told = []

    def started(self, result):
        self.told.append(("started", result.label))

    def line(self, result, text):
        self.told.append(("line", result.label, text))

    def ended(self, result):
        self.told.append(("ended", result.name, result.status))


def told(event, step="train", pod="pod-1", **fields):
    event = {"event": event, "step": step, "pod": pod, **fields}
    return f"    {EVENT_MARK}{json.dumps(event)}\n"


def end(code, step="train", pod="pod-1", stderr="", outputs=None, message="", terminated=False):
    rest = {"message": message, "stderr": stderr, "outputs": outputs or {}, "seconds": 1.5}
    return told("ended", step, pod, exit=code, terminated=terminated, **rest)


def follow(*lines):
    follower = Follower(Recorder())
    for line in lines:
        follower.take(line)
    return follower.finish(), follower._progress.told


def test_progress_is_told_in_order_and_kfps_own_lines_are_passed_over():
    followed, events = follow(
        "10:00:00 - INFO - Executing task\n",
        told("started"),
        told("line", text=f"loss=0.5 {EVENT_MARK}{{}}"),
        end(0),
    )
    assert events == [
        ("started", "train"),
        ("line", "train", f"loss=0.5 {EVENT_MARK}{{}}"),
        ("ended", "train", "succeeded"),
    ]
    assert followed.steps == [StepResult("train", "succeeded", 1.5)]
    assert followed.failed is None


def test_a_retried_step_that_succeeded_is_no_failure():
    followed, _ = follow(
        told("started"), end(1, stderr="no"), told("started", pod="pod-2"), end(0, pod="pod-2")
    )
    assert [step.status for step in followed.steps] == ["failed", "succeeded"]
    assert followed.failed is None


def test_a_round_of_a_loop_that_failed_is_none_that_another_round_makes_good():
    followed, _ = follow(
        told("started", task="round-0"),
        end(1, stderr="no cats"),
        told("started", pod="pod-2", task="round-1"),
        end(0, pod="pod-2"),
    )
    assert summary.error_of(followed) == "Step train failed.\nno cats"


def test_the_error_is_the_failing_steps_own_words():
    stderr = "a warning\n\npytorch_job failed.\nOut of memory on x-worker-0.\n\nIts log:\n  1\n"
    followed, _ = follow(told("started"), end(1, stderr=stderr))
    assert summary.error_of(followed) == (
        "Step train failed.\nOut of memory on x-worker-0.\n\nIts log:\n  1"
    )


def test_a_step_that_ends_as_if_it_had_been_terminated_has_failed():
    followed, _ = follow(told("started"), end(143))
    assert followed.steps[0].status == "failed"
    said = "Step train failed.\nIt said nothing, and ended with exit code 143."
    assert summary.error_of(followed) == said


def test_a_traceback_is_that_of_the_step_without_kfps_frames():
    stderr = """Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "/venv/site-packages/kfp/dsl/executor.py", line 453, in execute
    result = self.func(**func_kwargs)
             ^^^^^^^^^^^^^^^^^^^^^^^^
  File "/tmp/x/ephemeral_component.py", line 8, in bad
    raise ValueError(x)
ValueError: 2
"""
    followed, _ = follow(told("started"), end(1, stderr=stderr))
    assert (
        summary.error_of(followed)
        == """Step train failed.
Traceback (most recent call last):
  File "/tmp/x/ephemeral_component.py", line 8, in bad
    raise ValueError(x)
ValueError: 2"""
    )


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (
            "It broke.\nWhat to do: Mend it.\n\nWhat was seen:\n- x",
            "It broke.\nWhat to do: Mend it.",
        ),
        (
            'Traceback (most recent call last):\n  File "x", line 1\n    raise\n'
            "  [Previous line repeated 9 more times]\n"
            "E: two\n  - lines\nof it",
            "E: two\n  - lines\nof it",
        ),
        ("It broke; the log is below.\n\nIts log:\n- x", "It broke; the log is below."),
    ],
)
def test_a_person_who_has_seen_a_step_say_it_is_told_the_gist_at_the_end(words, shown):
    assert summary.headline(f"Step train failed.\n{words}") == shown


def test_what_was_not_seen_is_told_whole():
    assert summary.headline("KFP\n\nrefused it.") == "KFP\n\nrefused it."


def test_what_kfp_refused_is_the_error_when_no_step_failed():
    followed, _ = follow(told("error", step="", pod="", message="TypeError: missing"))
    assert summary.error_of(followed) == "TypeError: missing"


def test_an_interrupted_step_is_terminated_and_those_after_it_are_skipped(tmp_path):
    followed, _ = follow(told("started"))
    made = summary.summarise(PACKAGE, followed, summary.Place(tmp_path, None), "terminated")
    assert made["error"] == ""
    assert [(s["name"], s["status"]) for s in made["steps"]] == [
        ("train", "terminated"),
        ("deploy", "skipped"),
    ]


def test_summary_names_metrics_artifacts_and_where_the_job_left_its_files(tmp_path):
    page = tmp_path / "run" / "curves"
    page.parent.mkdir()
    page.write_text("<html>")
    artifacts = {
        "metrics": {"uri": "/m", "metadata": {"accuracy": 0.99, "note": "x"}},
        "curves": {"uri": str(page), "metadata": {}},
        "model": {"uri": "/model", "metadata": {"folder": "pvc://claim/key/job"}},
    }
    outputs = {"artifacts": artifacts, "parameters": {"storage_uri": "pvc://claim/key/job/export"}}
    followed, _ = follow(told("started"), end(0, outputs=outputs))
    place = summary.Place(page.parent, tmp_path / "claims" / "ns")
    (tmp_path / "claims" / "ns" / "claim" / "key" / "job" / "checkpoints").mkdir(parents=True)
    made = summary.summarise(PACKAGE, followed, place, "succeeded")
    assert made["metrics"] == {"accuracy": 0.99}
    assert made["model"] == {"storage_uri": "pvc://claim/key/job/export"}
    assert made["artifacts"]["checkpoints"] == f"{tmp_path}/claims/ns/claim/key/job/checkpoints"
    assert "tensorboard" not in made["artifacts"]  # this container wrote none
    assert list(made["artifacts"]) == ["curves", "metrics", "model", "checkpoints"]
    curves = made["artifacts"]["curves"]
    assert curves.endswith("curves.html")
    assert Path(curves).read_text() == "<html>"
    assert set(made) == set(summary.empty("p", "failed", ""))
    shown = screen.text(made, 12.34, kept=False)
    assert shown.startswith("p succeeded in 12.3 s")
    assert "accuracy 0.99" in shown
    assert json.loads(json.dumps(made)) == made


def test_the_artifacts_of_all_rounds_of_a_loop_are_named_and_those_of_an_attempt_once(tmp_path):
    lines = []
    for pod, uri in (("1", "/a"), ("2", "/b"), ("3", "/c"), ("4", "/d"), ("5", "/d")):
        folder = f"s3://bucket{uri}"
        metadata = {"folder": folder, "storage_uri": f"{folder}/export"}
        model = {"uri": uri, "metadata": metadata}
        lines += [
            told("started", pod=pod),
            end(0, pod=pod, outputs={"artifacts": {"model": model}}),
        ]
    followed, _ = follow(*lines)
    made = summary.summarise(PACKAGE, followed, summary.Place(tmp_path, None), "succeeded")
    models = {name: at for name, at in made["artifacts"].items() if name.endswith("model")}
    assert models == {
        "model": "/a",
        "train.model": "/b",
        "train[2].model": "/c",
        "train[3].model": "/d",
    }
    assert made["artifacts"]["checkpoints"] == "s3://bucket/a/checkpoints"
    assert made["artifacts"]["train[3].checkpoints"] == "s3://bucket/d/checkpoints"
    shown = screen.text(made, 1.0, kept=False)
    assert "train.model" not in shown
    assert "tensorboard --logdir s3://bucket/a/tensorboard\n" in shown


def test_of_a_job_elsewhere_that_exported_nothing_the_folder_alone_is_named(tmp_path):
    folder = "s3://bucket/key/job"
    model = {"uri": "/model", "metadata": {"folder": folder, "no_export": "none reported"}}
    parameters = {"storage_uri": "", "folder": folder}
    followed, _ = follow(
        told("started"),
        end(0, outputs={"artifacts": {"model": model}, "parameters": parameters}),
    )
    made = summary.summarise(PACKAGE, followed, summary.Place(tmp_path, None), "succeeded")
    assert list(made["artifacts"]) == ["model"]
    assert f"\n  job's folder  {folder}\n" in screen.text(made, 1.0, kept=False)


def test_terminal_shows_what_the_program_says_and_not_how_kfp_started_it(capsys):
    progress, result = TerminalProgress(err=False), StepResult("train")
    progress.started(result)
    for line in (
        "[KFP Executor 2026-01-01 10:00:00,000 INFO]: Got executor_input:",
        "{",
        '    "inputs": {}',
        "epoch=0 loss=0.7",
        "}",
        "epoch=1 loss=0.5",
        "[KFP Executor 2026-01-01 10:00:00,000 INFO]: Wrote executor output file to /x.",
    ):
        progress.line(result, line)
    progress.ended(StepResult("train", "succeeded", 2.04))
    assert capsys.readouterr().out == (
        "train: started\n  epoch=0 loss=0.7\n  epoch=1 loss=0.5\ntrain: succeeded in 2.0 s\n"
    )


def test_iterations_of_a_loop_are_told_apart_while_they_run_and_attempts_are_counted(
    tmp_path, capsys
):
    first, second = (f"for-loop-1-iteration-{n}/train" for n in range(2))
    follower = Follower(TerminalProgress(err=False), {"train": 3})
    for line in (
        told("started", task=first, inputs={"lr": 0.1, "epochs": 2}),
        told(
            "started",
            task=second,
            pod="pod-2",
            inputs={"lr": 0.2, "epochs": 2},
        ),
        told("line", text="loss=1"),
        end(1, stderr="no"),
        told(
            "started",
            task=first,
            pod="pod-3",
            inputs={"lr": 0.1, "epochs": 2},
        ),
        end(0, pod="pod-3"),
        end(0, pod="pod-2"),
    ):
        follower.take(line)
    assert capsys.readouterr().out.splitlines() == [
        "train:lr=0.1: started",
        "train:lr=0.2: started",
        "  train:lr=0.1 | loss=1",
        "train:lr=0.1: failed in 1.5 s (attempt 1 of 3)",
        "train:lr=0.1: started (attempt 2 of 3)",
        "train:lr=0.1: succeeded in 1.5 s (attempt 2 of 3)",
        "train:lr=0.2: succeeded in 1.5 s",
    ]
    place = summary.Place(tmp_path, None)
    shown = screen.text(
        summary.summarise(PACKAGE, follower.finish(), place, "succeeded"), 1, kept=False
    )
    assert "  train:lr=0.1     3.0 s  succeeded after 2 attempts\n" in shown
    assert "failed" not in shown
