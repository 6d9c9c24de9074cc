"""The shipped pipeline over sizes of a job: what each of them gets, and what is compared."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest

from kfp_pytorch.client.packages import checks
from kfp_pytorch.client.packages import find as packages
from kfp_pytorch.client.packages.known_tasks import known_tasks
from kfp_pytorch.pipelines import steps


@pytest.fixture(scope="module")
def package() -> Any:
    return packages.find_one("data_parallel_sweep")


def size(**more: int) -> dict[str, int]:
    return {"num_nodes": 1, "nproc_per_node": 1, "gpus_per_node": 0, "batch_size": 64, **more}


def test_each_size_reaches_a_job_of_its_own(package: Any) -> None:
    sizes = [size(), size(num_nodes=4, nproc_per_node=8, gpus_per_node=8, batch_size=256)]
    jobs = [
        each for each in known_tasks(package, {"sizes": sizes}) if each.function == "pytorch_job"
    ]
    told = [(job.inputs["num_nodes"], job.inputs["gpus_per_node"]) for job in jobs]
    assert told == [(1, 0), (4, 8)]
    checked = [checks.job_inputs(job) for job in jobs]
    assert [each.nproc_per_node for each in checked] == ["1", "8"]
    assert [each.hyperparameters["batch-size"] for each in checked] == ["64", "256"]


def test_the_jobs_run_one_after_the_other_and_all_models_are_compared(package: Any) -> None:
    tasks = package.spec["root"]["dag"]["tasks"]
    (loop,) = (name for name in tasks if name.startswith("for-loop"))
    assert tasks[loop]["iteratorPolicy"] == {"parallelismLimit": 1}
    source = tasks["compare-jobs"]["inputs"]["artifacts"]["models"]["taskOutputArtifact"]
    assert source["producerTask"] == loop
    taken = package.spec["components"]["comp-compare-jobs"]["inputDefinitions"]["artifacts"]
    assert taken["models"]["isArtifactList"]
    assert taken["models"]["artifactType"]["schemaTitle"] == "system.Model"


def test_a_size_that_cannot_work_is_found_before_a_run(package: Any) -> None:
    with pytest.raises(click.ClickException, match="num_nodes is 0; it must be from 1"):
        checks.check(package, {"sizes": [size(), size(num_nodes=0)]})


def test_no_step_is_taken_from_the_cache_and_the_jobs_get_their_grace(package: Any) -> None:
    executors = package.platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    annotations = executors["exec-pytorch-job"]["podMetadata"]["annotations"]
    assert json.loads(annotations[steps.KILL_COMMAND])[:2] == ["sh", "-c"]
    for component in [package.spec["root"], *package.spec["components"].values()]:
        for name, task in component.get("dag", {}).get("tasks", {}).items():
            runs = "executorLabel" in package.spec["components"][task["componentRef"]["name"]]
            assert not (runs and (task.get("cachingOptions") or {}).get("enableCache")), name


def test_every_parameter_has_a_description_and_a_default_that_is_something(package: Any) -> None:
    for name, parameter in package.spec["root"]["inputDefinitions"]["parameters"].items():
        assert len(parameter["description"]) > 10, name
        assert parameter.get("defaultValue") is not None, name
