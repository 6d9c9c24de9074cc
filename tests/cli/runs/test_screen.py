"""The summary of a run fits a screen, and a loop's iterations are told apart in it."""

from __future__ import annotations

import pytest

from kfp_pytorch.cli.runs import labels, screen, summary


def step(label, status="succeeded", name=""):
    shown = {"name": name or label, "label": label, "status": status, "seconds": 1.0}
    return {**shown, "attempts": 1, "called": []}


def job(label, place, **more):
    logs = [
        {"ranks": f"rank {n}", "pod": f"p-{n}", "path": f"{place}/logs/n_p-{n}_uid/pytorch/0.log"}
        for n in range(2)
    ]
    report = {"Nodes × processes": "2 × 1", "World size": "2", "Restarts": "0", "Image": "i"}
    made = {"step": label, "status": "succeeded", "name": "p", "folder": "s3://b/k/p"}
    made["elsewhere"] = False
    return {**made, "report": report, "metrics": {}, "checkpoints": "", "logs": logs, **more}


def told(place, status="succeeded", error="", **more):
    return summary.empty("p", status, error) | {"run": "r", "place": f"{place}/runs/r"} | more


def rows(text, columns):
    return sum(max(1, -(-len(line) // columns)) for line in text.split("\n"))


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("status", ["succeeded", "failed"])
def test_a_loop_of_a_hundred_iterations_fits_a_screen(tmp_path, status, columns, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    names = [f"train:lr={n}" for n in range(100)]
    steps = [step(name, status if name == names[-1] else "succeeded", "train") for name in names]
    jobs = [job(name, tmp_path, metrics={"loss": 0.5}) for name in names]
    error = f"Step train failed.\n{'It broke. ' * 100}\n\nMore."
    failed = {"error": error, "failed": names[-1]} if status == "failed" else {}
    made = {"steps": steps, "jobs": jobs, "metrics": {"loss": 0.5}, **failed}
    summary = told(tmp_path / ".kfp-pytorch", status, **made)
    text = screen.text(summary, 9, kept=True, columns=columns)
    assert rows(text, columns) <= 24
    assert "Nodes × processes  loss\n" in text
    assert "and 94 more jobs" in text
    assert ("train, 100 times  succeeded" in text) == (status == "succeeded")
    if failed:
        assert text.splitlines()[2].split() == ["train:lr=99", "1.0", "s", "failed"]
        assert "--step train:lr=99" in text


def test_the_job_as_submitted_is_folded_away_and_its_report_is_a_table(tmp_path):
    path = tmp_path / "report"
    path.write_text(
        "# PyTorchJob p\n\n## Hyperparameters\n\n| Name | Value |\n| --- | --- |\n| lr | 0.1 |\n\n"
        "|  |  |\n| --- | --- |\n| Image | a\\_b\\|c |\n| Nodes × processes | 2 × 1 |\n\n"
        '## The job as submitted\n\n```json\n{"a": 1}\n| b | c |\n```\n'
    )
    done = summary.StepResult("train", artifacts={"report": {"uri": str(path)}})
    assert summary._report(done) == {"Image": "a_b|c", "Nodes × processes": "2 × 1"}
    assert summary._report(summary.StepResult("train")) == {}


def test_the_end_of_many_nodes_is_cut_and_resume_is_offered_for_an_unfinished_job(tmp_path):
    logs = job("train", tmp_path)["logs"] * 8
    for checkpoints in ("", "/c"):
        made = job("train", tmp_path, logs=logs, status="failed", checkpoints=checkpoints)
        text = screen.text(told(tmp_path, "failed", "It broke.", jobs=[made]), 1, kept=True)
        assert "and of 12 more nodes" in text
        assert ("--resume" in text) == bool(checkpoints)
        assert "It broke." in text.splitlines()[2]


def test_the_files_of_a_loops_iterations_are_shown_together(tmp_path):
    folders = [f"{tmp_path}/runs/r/for-loop-2-iteration-{n}/train" for n in range(9)]
    artifacts = {f"{n}.report": f"{folder}/report.md" for n, folder in enumerate(folders)}
    text = screen.text(told(tmp_path, artifacts=artifacts), 1, kept=True)
    assert text.count("report.md") == 1
    assert "for-loop-2-iteration-*/train/report.md" in text


def test_of_a_job_elsewhere_the_end_says_how_the_logs_of_its_ranks_are_read(tmp_path):
    made = job("train", tmp_path, logs=[], elsewhere=True)
    assert "with --kubeconfig FILE: of ranks" in screen.text(
        told(tmp_path, jobs=[made]), 1, kept=True
    )
    made["elsewhere"] = False
    assert "--kubeconfig" not in screen.text(told(tmp_path, jobs=[made]), 1, kept=True)


@pytest.mark.parametrize(
    ("inputs", "made"),
    [
        ([{}], ["s"]),
        ([{}, {}], ["s:1", "s:2"]),
        ([{"lr": 0.1, "n": 2}, {"lr": 0.2, "n": 2}], ["s:lr=0.1", "s:lr=0.2"]),
        (
            [{"a": i, "b": j} for i in (1, 2) for j in (3, 4)],
            ["s:a=1,b=3", "s:a=1,b=4", "s:a=2,b=3", "s:a=2,b=4"],
        ),
        ([{"h": {"lr": 1, "x": 0}}, {"h": {"lr": 2, "x": 0}}], ["s:lr=1", "s:lr=2"]),
        ([{"args": ["--lr=1"]}, {"args": ["--lr=2"]}], ["s:lr=1", "s:lr=2"]),
        ([{"h": {"n": 2.0}}, {"h": {"n": 3.5}}], ["s:n=2", "s:n=3.5"]),
        ([{"pipelinechannel--x": 1}, {"pipelinechannel--x": 2}], ["s:x=1", "s:x=2"]),
        ([{"a": f"{'x' * 99}{n}"} for n in (1, 2)], ["s:1", "s:2"]),
        ([{"a": "x y"}, {"a": None}], ["s:a=x y", "s:a=null"]),
    ],
)
def test_tasks_are_told_apart_by_the_arguments_that_differ(inputs, made):
    tasks = [("s", each) for each in inputs]
    assert labels.labels([("other", {}), *tasks]) == ["other", *made]
    for number, label in enumerate(made):
        assert labels.matches(tasks, label) == [number]
        assert labels.matches(tasks, f"s:{number + 1}") == [number]
    assert labels.matches([("s", {"n": 1}), ("s", {"n": 2.0})], "s:n=2.0") == [1]
    assert labels.matches(tasks, "s:0") == labels.matches(tasks, "t") == []
    assert labels.matches(tasks, "s") == list(range(len(tasks)))
