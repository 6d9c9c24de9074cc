"""Whatever ends a run, resuming it ends as if nothing had been."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness.in_process import learned
from harness.kfp.backend import run

from kfp_pytorch.client.packages import find as packages
from kfp_pytorch.components.forms import THIS_PYTHON, image_form
from kfp_pytorch.launcher.constants import PYTORCHJOB
from kfp_pytorch.local import lifecycle

# Stories with several trainings each, on a machine that may be busy.
pytestmark = [pytest.mark.timeout(600), pytest.mark.slow, pytest.mark.local_cluster]

PIPELINES = Path(__file__).with_name("training_pipelines.py")
COMMAND = [sys.executable, "-m", "kfp_pytorch.cli", "run"]
# Enough for a signal to find training still on, though an epoch takes a third of a second.
EPOCHS = 12
CURVES = ("train_loss", "loss", "accuracy")


class Run:
    """`kfp-pytorch run`, which somebody may end."""

    def __init__(self, pipeline: str, root: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, pipeline, "--local", "--json", "--root", str(root), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.seen = ""

    def until(self, words: str) -> Run:
        """Read on until somebody watching would have read these words."""
        for line in self.process.stderr:
            self.seen += line
            if words in line:
                return self
        raise AssertionError(f"it ended without {words!r}:\n{self.seen}")

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        self.summary()
        return self.process.returncode

    def summary(self):
        stdout, stderr = self.process.communicate()
        self.seen += stderr
        return json.loads(stdout) if stdout else {}

    @property
    def jobs(self) -> set[str]:
        """The names of the jobs that it created or took up."""
        return set(re.findall(r"PyTorchJob default/([a-z0-9-]+)", self.seen))


@pytest.fixture(scope="module")
def uninterrupted(cluster, tmp_path_factory):
    """What training leaves that nobody interrupts."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    training = [sys.executable, "-m", "kfp_pytorch.training", f"--output={folder}"]
    subprocess.run([*training, f"--epochs={EPOCHS}"], check=True, capture_output=True)
    return folder


def same_as(folder: Path, uninterrupted: Path) -> None:
    """Compare what two jobs left: metrics, curves, and what TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    left, expected = (json.loads((f / "metrics.json").read_text()) for f in (folder, uninterrupted))
    assert learned(left["metrics"]) == pytest.approx(learned(expected["metrics"]))
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    for name in CURVES:
        points = expected["curves"][name]
        assert [step for step, _ in left["curves"][name]] == [step for step, _ in points]
        assert dict(left["curves"][name]) == pytest.approx(dict(points))
        shown = {event.step: event.value for event in events.Scalars(name)}
        assert shown == pytest.approx(dict(points), rel=1e-5)
        assert len(events.Scalars(name)) == len(points)


def test_killed_in_mid_training_a_run_still_ends_as_if_nothing_had_been(cluster, uninterrupted):
    first = Run(f"{PIPELINES}:trained", cluster.root, "-p", f"epochs={EPOCHS}").until("epoch=4 ")
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    ends_as_if_nothing_had_been(cluster, uninterrupted, {first: "epoch=2 "})


def test_killed_and_interrupted_a_run_still_ends_as_if_nothing_had_been(cluster, uninterrupted):
    what = f"{PIPELINES}:trained"
    first = Run(what, cluster.root, "-p", f"epochs={EPOCHS}").until("epoch=2 ")
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    second = Run(what, cluster.root, "--resume").until("epoch=4 ")
    assert second.end(signal.SIGINT) == 130
    assert "epoch=1 " not in second.seen
    ends_as_if_nothing_had_been(cluster, uninterrupted, {first: "epoch=1 ", second: "epoch=2 "})


def ends_as_if_nothing_had_been(cluster, uninterrupted, ended):
    """Resume what was ended; for each, these words come no second time."""
    last = Run(f"{PIPELINES}:trained", cluster.root, "--resume")
    summary = last.summary()
    assert summary.get("status") == "succeeded", last.seen
    assert not [words for words in ended.values() if words in last.seen]
    assert len(last.jobs.union(*(each.jobs for each in ended))) == 1
    (job,) = (j for j in cluster.objects(PYTORCHJOB) if j["metadata"]["name"] in last.jobs)
    assert job["status"]["conditions"][-1]["type"] == "Succeeded"
    same_as(Path(summary["artifacts"]["checkpoints"]).parent, uninterrupted)


def test_a_retried_step_goes_on_from_the_checkpoint_of_the_job_that_failed(where, uninterrupted):
    package = packages.find_one(f"{PIPELINES}:dying").spec
    made = run(image_form(package, THIS_PYTHON), where, epochs=EPOCHS)
    first, second = made.tries["pytorch-job"]
    assert first.code == 1
    assert "the first attempt dies" in first.log
    assert first.artifacts == {}
    assert second.code == 0, second.log
    assert "epoch=1 " not in second.log
    (folder,) = where.kubeconfig.parent.glob(f"claims/default/*/{where.setting.run_id}/dying-*")
    same_as(folder, uninterrupted)


MOMENTS = [
    ("tensorboard: started", signal.SIGKILL),
    ("created PyTorchJob", signal.SIGINT),
    ("created PyTorchJob", signal.SIGKILL),
    ("epoch=1 ", signal.SIGINT),
    ("epoch=3 ", signal.SIGKILL),
    ("epoch=5 ", signal.SIGTERM),
    (f"epoch={EPOCHS} ", signal.SIGKILL),
    (f"/checkpoints/step-{EPOCHS * 23:08} in", signal.SIGKILL),
    ("pytorch-job: succeeded", signal.SIGKILL),
    ("metric-gate: started", signal.SIGINT),
    ("kserve-deploy: started", signal.SIGKILL),
    ("waiting for pods of the new revision", signal.SIGINT),
    ("kserve-predict: started", signal.SIGKILL),
]
WHOLE = ("-p", f"epochs={EPOCHS}", "-p", "num_nodes=1", "-p", "min_accuracy=0.5")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("words", "number"), MOMENTS)
def test_a_run_ended_at_any_moment_is_resumed_to_the_same_end(
    tmp_path, uninterrupted, words, number
):
    ended = Run("train_and_serve", tmp_path, *WHOLE).until(words)
    ended.end(number)
    finish(tmp_path, uninterrupted)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(6))
def test_a_run_killed_several_times_at_random_is_resumed_to_the_same_end(
    tmp_path, uninterrupted, seed
):
    chance = random.Random(seed)
    options = WHOLE
    for _ in range(chance.randint(2, 4)):
        started = Run("train_and_serve", tmp_path, *options)
        try:
            started.process.wait(chance.uniform(0.5, 25))
        except subprocess.TimeoutExpired:
            started.end(chance.choice([signal.SIGKILL, signal.SIGINT]))
        if has_succeeded(tmp_path):
            return
        if list(tmp_path.glob("runs/*/run.json")):
            options = (*WHOLE, "--resume")
    # On a busy machine every one may have been killed before there was a run.
    finish(tmp_path, uninterrupted, *options)


def has_succeeded(root: Path) -> bool:
    """Whether the run succeeded before it could be ended."""
    summaries = root.glob("runs/*/summary.json")
    return any(json.loads(path.read_text())["status"] == "succeeded" for path in summaries)


def finish(root: Path, uninterrupted: Path, *options: str) -> None:
    last = Run("train_and_serve", root, *(options or ["--resume"]))
    summary = last.summary()
    assert summary.get("status") == "succeeded", last.seen
    assert summary["prediction"]["class"] in range(10)
    (folder,) = root.glob("claims/default/kfp-pytorch/*/train-*")
    same_as(folder, uninterrupted)
    assert lifecycle.status(root) is None
