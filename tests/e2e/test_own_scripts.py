"""Scripts that know nothing of this project run as docs/your-own-script.md says."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import kfp_pytorch

pytestmark = pytest.mark.local_cluster

DOCS = Path(kfp_pytorch.__file__).resolve().parent.parent / "docs"
PIPELINES = Path(__file__).with_name("script_pipelines.py")
LACKS = (
    "warning: Training reported no metrics, no curves, no export. A script does so with `from "
    "kfp_pytorch.training import script`"
)
KILLED_ONCE = Path(__file__).with_name("killed_once.py")
ONE_PROCESS = ("saves_to_out", "only_prints")
FRAMEWORKS = {
    "lightning_module": "lightning",
    "transformers_trainer": "transformers",
    "accelerate_loop": "accelerate",
    "deepspeed_engine": "deepspeed",
}
_ROW = re.compile(r"^\| \[(\w+)\.py\]\(\S+\) \|.*\| `(command=.*)` \| (\d+) \|", re.MULTILINE)


def documented(folder: str) -> dict[str, dict[str, Any]]:
    """What the page says to give `pytorch_job` for each script, with the script's whole path."""
    return {script: _arguments(given, folder) for script, given, _ in _rows()}


def _rows() -> list[tuple[str, str, str]]:
    return _ROW.findall((DOCS / "your-own-script.md").read_text(encoding="utf-8"))


def _arguments(given: str, folder: str) -> dict[str, Any]:
    (call,) = ast.parse(f"pytorch_job({given})").body
    found = {word.arg: ast.literal_eval(word.value) for word in call.value.keywords}
    *before, script = found["command"]
    return found | {"command": [*before, str(DOCS / "scripts" / folder / script)]}


def words(text: str) -> str:
    """A text that was wrapped, in one line."""
    return " ".join(text.split())


@pytest.mark.slow
@pytest.mark.parametrize("script", ["ddp", *ONE_PROCESS, *FRAMEWORKS])
def test_a_script_runs_unchanged_and_the_step_says_what_it_lacks(cluster, script):
    needs(script)
    given = documented("plain")[script]
    ran = cluster.run(f"{PIPELINES}:own_script", name=script.replace("_", "-"), **given)
    assert ran.code == 0, ran.stderr
    assert ran.step("pytorch-job") == "succeeded"
    assert LACKS in words(ran.stderr)
    assert ran.summary["metrics"] == {}
    assert ran.summary["model"]["storage_uri"] == ""


def needs(script: str) -> None:
    """Skip the test where a script's framework is not installed."""
    package = FRAMEWORKS.get(script, "torch")
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    if package == "deepspeed" and shutil.which("g++") is None:
        pytest.skip("g++ is not installed, with which deepspeed builds what it needs on a CPU")


def test_the_page_counts_the_lines_that_are_added_to_each_script():
    for script, _, lines in _rows():
        plain, reporting = (
            (DOCS / "scripts" / folder / f"{script}.py").read_text().splitlines()
            for folder in ("plain", "reporting")
        )
        changes = [line for line in difflib.ndiff(plain, reporting) if line[:2] == "+ "]
        added = [line for line in changes if line[2:].strip()]
        assert (script, int(lines)) == (script, len(added))
        assert 3 <= len(added) <= 8


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("script", ["ddp", *ONE_PROCESS, *FRAMEWORKS])
def test_with_a_few_lines_a_script_that_is_killed_resumes_and_its_model_is_served(cluster, script):
    needs(script)
    given = documented("reporting")[script]
    *launcher, path = given["command"]
    command = [*launcher, str(KILLED_ONCE), path]
    name = script.replace("_", "-")
    ran = cluster.run(f"{PIPELINES}:served_script", name=name, **{**given, "command": command})
    assert ran.code == 0, ran.stderr
    assert [s["status"] for s in ran.summary["steps"]] == ["succeeded"] * 3
    assert re.search(r"kfp-pytorch: resuming from \S+ at step \d+", words(ran.stderr))
    assert ran.summary["metrics"]
    assert ran.summary["prediction"] is not None
    (folder,) = cluster.root.glob(f"claims/default/kfp-pytorch/*/{name}-*")
    assert (folder / "killed").exists()
    curves = json.loads((folder / "metrics.json").read_text())["curves"]
    steps = [step for step, _ in curves[next(name for name in curves if "loss" in name)]]
    assert steps == [steps[0] * (index + 1) for index in range(len(steps))]
    assert len(steps) >= 6


def test_of_a_long_training_with_many_curves_no_metric_is_lost(cluster):
    ran = cluster.run(f"{PIPELINES}:reporting", metric="curve_11")
    assert ran.code == 0, ran.stderr
    assert ran.summary["metrics"].keys() == {f"curve_{number}" for number in range(12)}
    assert ran.step("metric-gate") == "succeeded"
    folder = ran.summary["folder"].removeprefix("pvc://")
    written = Path(cluster.root, "claims/default", folder, "metrics.json").read_text()
    curves = json.loads(written)["curves"]
    assert [len(points) for points in curves.values()] == [70] * 12


@pytest.mark.slow
def test_a_metric_that_did_not_fit_is_not_called_one_that_was_never_reported(cluster):
    ran = cluster.run(f"{PIPELINES}:reporting", metric="metric_499", more=500)
    assert ran.step("pytorch-job") == "succeeded"
    assert ran.step("metric-gate") == "failed"
    said = words(ran.summary["error"])
    assert "There is no metric 'metric_499'. " in said
    assert " There are: curve_0 = " in said
    (left_out,) = re.findall(r"(\d+) metrics did not fit into the termination message", said)
    assert int(left_out) + len(ran.summary["metrics"]) == 512
    (folder,) = re.findall(r"all are in pvc://kfp-pytorch/(\S+)\.", said)
    written = json.loads(Path(cluster.root, "claims/default/kfp-pytorch", folder).read_text())
    assert written["metrics"]["metric_499"] == pytest.approx(499 / 7)


@pytest.mark.slow
def test_a_gate_behind_a_script_that_reports_nothing_says_how_to_report(cluster):
    ran = cluster.run(f"{PIPELINES}:silently_gated")
    assert ran.step("pytorch-job") == "succeeded"
    said = words(ran.summary["error"])
    assert "There is no metric 'accuracy'. Training reported no metric" in said
    assert "script.report({'accuracy': …}, step=…)" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("model.json", False, "has no model.json"),
        ("model.pt2", False, "has no model.pt2"),
        ("model.pt2", True, "export/model.pt2 is not what was written"),
    ],
)
def test_an_export_that_is_not_there_as_it_was_written_fails_the_step(cluster, file, change, said):
    ran = cluster.run(f"{PIPELINES}:exporting", file=file, change=change)
    assert ran.code == 1
    assert ran.step("pytorch-job") == "failed"
    assert said in words(ran.summary["error"])
    assert "it was changed or deleted after the export" in words(ran.summary["error"])
