"""`distribute`: a component's function in every process of a job, on 2 nodes of 2 processes."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from harness.kfp.backend import run
from harness.kfp.step_pod import Answer, Pod, certificate, serving

from kfp_pytorch.client.packages.find import find_one
from kfp_pytorch.components import bundle
from kfp_pytorch.launcher.constants import PYTORCHJOB

PIPELINES = Path(__file__).with_name("distributed_pipelines.py")


@pytest.mark.slow
def test_rank_0_of_2_nodes_with_2_processes_returns_the_metric_and_the_model(cluster):
    ran = cluster.run(f"{PIPELINES}:distributed")
    assert ran.code == 0, ran.stderr
    assert [s["status"] for s in ran.summary["steps"]] == ["succeeded"] * 3
    # 0 + 1 + 2 + 3, and the second job read the model of the first.
    assert "told: 6.0, 6.0 in 1 at torch, 6.0" in ran.stderr
    (job,) = (j for j in cluster.objects(PYTORCHJOB) if j["metadata"]["name"].startswith("train-"))
    assert job["spec"]["nprocPerNode"] == "2"
    assert {r: s["replicas"] for r, s in job["spec"]["pytorchReplicaSpecs"].items()} == {
        "Master": 1,
        "Worker": 1,
    }
    (told, _) = ran.summary["jobs"]
    assert (told["step"], told["metrics"]) == ("train", {"total": 6.0})
    if cluster.where == ["--local"]:
        assert [each["ranks"] for each in told["logs"]] == ["ranks 0-1", "ranks 2-3"]


@pytest.mark.slow
@pytest.mark.local_cluster
def test_rank_0_of_a_train_job_returns_the_metric(cluster):
    ran = cluster.run(f"{PIPELINES}:as_train_job")
    assert ran.code == 0, ran.stderr
    (told,) = ran.summary["jobs"]
    assert told["metrics"] == {"total": 6.0}


@pytest.mark.slow
@pytest.mark.local_cluster
@pytest.mark.parametrize("pipeline", ["distributed", "as_train_job"])
def test_a_rank_that_fails_fails_the_step_with_the_users_traceback_and_no_second_try(
    cluster, pipeline
):
    # Jobs of the tests before left theirs.
    before = began_files(cluster, pipeline)
    ran = cluster.run(f"{PIPELINES}:{pipeline}", fail_rank=3)
    assert ran.code == 1
    words = " ".join(ran.stderr.split())
    assert "Rank 3 (train-" in words
    assert "raised ValueError: rank 3 of 4 is no good: {$HOME} `x`" in words
    assert "ephemeral_component.py" in words
    # Each rank of the one job leaves its mark, once.
    (marks,) = began_files(cluster, pipeline) - before
    assert sorted(marks.read_text().split()) == ["0", "1", "2", "3"]


def began_files(cluster, pipeline):
    return set((cluster.root / "claims").glob(f"*/kfp-pytorch/{pipeline}/*/began"))


@pytest.mark.slow
def test_the_tasks_retries_environment_and_imported_artifacts_reach_the_function(cluster, tmp_path):
    (tmp_path / "data.csv").write_text("1,2")
    ran = cluster.run(f"{PIPELINES}:retried", data=str(tmp_path / "data.csv"))
    assert ran.code == 0, ran.stderr
    assert "RuntimeError: not at the first try" in ran.stderr
    assert "said: data.csv: 1,2 $(x) `ä` None" in ran.stderr


@pytest.mark.slow
def test_it_runs_in_loops_conditions_and_exit_handlers_in_several_sizes(cluster):
    ran = cluster.run(f"{PIPELINES}:control")
    assert ran.code == 0, ran.stderr
    steps = {step["label"]: step["status"] for step in ran.summary["steps"]}
    assert steps.pop("square-4") == "skipped"
    assert sorted(steps) == [
        "add", "ended", "square-2", "square-3", "square:number=1", "square:number=3",
    ]  # fmt: skip
    assert set(steps.values()) == {"succeeded"}
    assert "added in add of " in ran.stderr
    assert "ended: SUCCEEDED" in ran.stderr
    sizes = [
        len(job["spec"]["pytorchReplicaSpecs"])
        for job in cluster.objects(PYTORCHJOB)
        if job["metadata"]["name"].startswith("square-")
    ]
    assert sorted(sizes)[-4:] == [1, 1, 1, 2]


@pytest.mark.slow
@pytest.mark.local_cluster
def test_compiled_steps_read_the_launcher_and_hand_on_what_rank_0_returns(
    where, tmp_path, monkeypatch
):
    certificate(tmp_path)
    package = copy.deepcopy(find_one(f"{PIPELINES}:distributed").spec)
    with serving(tmp_path) as server:
        pod = Pod.make(tmp_path, server.port, bundle.archive())
        server.script = [Answer.with_launcher(pod.wanted)]
        for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
            monkeypatch.setenv(name, pod.environ[name])
        for executor in package["deploymentSpec"]["executors"].values():
            command = executor["container"]["command"]
            if "distributed.step" in command[-1]:
                command[-1] = pod.rewritten(command[-1])
        made = run(package, where)
    assert made.succeeded, made.log
    # The two distributed steps; the third is no step of this project.
    assert len(server.asked) == 2
    assert "told: 6.0, 6.0 in 1 at torch, 6.0" in made.log
    model = made.of("train").artifacts["model"]
    assert model["metadata"]["storage_uri"].startswith("pvc://kfp-pytorch/distributed/train-")
    assert model["uri"].startswith("minio://")
    assert made.of("train").artifacts["job_report"]["uri"].startswith("minio://")
