"""A step that is ended from outside, as on a cluster: its output broken, killed within a second."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from harness.command import until
from harness.kfp.backend import run
from harness.kfp.steps import Try, drive

from kfp_pytorch.client.packages import find as packages
from kfp_pytorch.components.forms import THIS_PYTHON, image_form
from kfp_pytorch.launcher.constants import POD, PYTORCHJOB
from kfp_pytorch.local import client, lifecycle

pytestmark = pytest.mark.local_cluster

PIPELINES = Path(__file__).with_name("training_pipelines.py")
# Trains until it is let go. What it says is not in its command, which is in the step's log too.
WAITS = """
import pathlib, sys, time
print("at", "work", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
"""


@pytest.fixture
def waiting(where, tmp_path):
    """A step whose job runs until the file `go` is there."""
    package = image_form(packages.find_one(f"{PIPELINES}:anything").spec, THIS_PYTHON)
    command = ["python", "-c", WAITS, str(tmp_path / "go")]
    given = {"image": "train", "name": "waiting", "command": command, "num_nodes": 2}
    return drive(package, "pytorch-job", where, given)


def objects(cluster, kind, prefix="waiting-"):
    handle = lifecycle.status(cluster.root)
    url = client.path(kind, "default")
    listed = client.request(handle.url, "GET", url, token=handle.token)["items"]
    return [item for item in listed if item["metadata"]["name"].startswith(prefix)]


# How soon it is killed on a cluster is for a machine that has nothing else to do.
@pytest.mark.parametrize(
    "kill_after", [60.0, *(pytest.param(s, marks=pytest.mark.slow) for s in (0.5, 1.0))]
)
def test_ending_a_run_deletes_its_job_before_the_step_is_killed(
    where, cluster, waiting, kill_after
):
    started = Try(waiting, where, kill_after=kill_after).until_it_says("at work")
    (job,) = objects(cluster, PYTORCHJOB)
    ended = started.terminate().wait()
    assert ended.code == 143
    assert ended.artifacts == {}
    assert job["metadata"]["uid"] not in [
        j["metadata"]["uid"]
        for j in objects(cluster, PYTORCHJOB)
        if "deletionTimestamp" not in j["metadata"]
    ]


@pytest.mark.parametrize("end", [Try.drain, Try.kill], ids=["drained", "power lost"])
def test_a_step_that_goes_with_its_node_leaves_its_job_to_the_next_try(
    where, cluster, waiting, tmp_path, end
):
    # A drain that a busy machine does not tell in time is taken for the end of the run.
    for number in range(10):
        first = Try(waiting, where, number, kill_after=60.0).until_it_says("at work")
        (job,) = objects(cluster, PYTORCHJOB)
        ended = end(first).wait()
        assert ended.code == 143
        if not ended.message.endswith(" deleted."):
            break
        until(lambda: objects(cluster, PYTORCHJOB) == [])
    second = Try(waiting, where, number + 1).until_it_says("at work")
    (tmp_path / "go").touch()
    ended = second.wait()
    assert ended.code == 0, ended.log
    assert "created PyTorchJob" not in ended.log
    (same,) = objects(cluster, PYTORCHJOB)
    assert same["metadata"]["uid"] == job["metadata"]["uid"]
    assert ended.artifacts["model"]["metadata"]["job"] == job["metadata"]["name"]
    delete(cluster, same)


def test_a_failed_step_leaves_its_words_and_none_of_its_artifacts(where, cluster):
    raising = packages.find_one(f"{PIPELINES.with_name('pipelines.py')}:raising").spec
    made = run(image_form(raising, THIS_PYTHON), where)
    failed = made.of("pytorch-job")
    assert failed.code == 1
    assert failed.artifacts == {}
    assert not list((where.folder / "store").rglob("*"))
    *_, last = failed.log.split("pytorch_job failed.")
    assert "ValueError: the script's own words" in last
    assert "ValueError: the script's own words" in failed.message
    # The step asks for the job's deletion and ends; that takes its time.
    (job,) = re.findall(r"created PyTorchJob default/(\S+)", failed.log)
    until(lambda: objects(cluster, PYTORCHJOB, job) == objects(cluster, POD, job) == [])


def delete(cluster, job):
    handle = lifecycle.status(cluster.root)
    url = client.path(PYTORCHJOB, "default", job["metadata"]["name"])
    client.request(handle.url, "DELETE", url, token=handle.token)
