"""The shipped pipeline of a language model: what its TrainJob gets, and when it is deployed."""

from __future__ import annotations

from typing import Any

import click
import pytest

from kfp_pytorch.client.packages import checks
from kfp_pytorch.client.packages import find as packages
from kfp_pytorch.client.packages.known_tasks import known_tasks
from kfp_pytorch.pipelines import steps

REAL = {
    "runtime": "kfp-pytorch-fine-tune",
    "runtime_kind": "TrainingRuntime",
    "model_initializer": {"storage_uri": "hf://Qwen/Qwen2.5-0.5B-Instruct"},
    "dataset_initializer": {"storage_uri": "hf://trl-lib/Capybara"},
}


@pytest.fixture(scope="module")
def package() -> Any:
    return packages.find_one("fine_tune")


def task(package: Any, function: str, **arguments: Any) -> Any:
    (found,) = (t for t in known_tasks(package, arguments) if t.function == function)
    return found


def test_the_job_downloads_model_and_data_and_trains_its_adapter(package: Any) -> None:
    given = {**REAL, "num_nodes": 2, "gpus_per_node": 4, "lora_rank": 8}
    spec = checks.job_of(task(package, "train_job", **given))["spec"]
    assert spec["runtimeRef"]["name"] == "kfp-pytorch-fine-tune"
    assert spec["runtimeRef"]["kind"] == "TrainingRuntime"
    assert spec["initializer"]["model"]["storageUri"] == "hf://Qwen/Qwen2.5-0.5B-Instruct"
    assert spec["initializer"]["dataset"]["storageUri"] == "hf://trl-lib/Capybara"
    trainer = spec["trainer"]
    assert trainer["command"] == ["torchrun", "-m", "kfp_pytorch.training.fine_tune"]
    assert {"--lora-rank=8", "--epochs=3"} <= set(trainer["args"])
    assert trainer["numNodes"] == 2
    assert trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"] == "4"


def test_by_default_nothing_is_downloaded_and_nothing_deployed(package: Any) -> None:
    assert "initializer" not in checks.job_of(task(package, "train_job"))["spec"]
    assert not task(package, "kserve_deploy").certain
    deployed = task(package, "kserve_deploy", service_name="llm")
    assert deployed.certain
    service = checks.deploy_inputs(deployed)
    assert (service.protocol, service.service_name) == ("openai", "llm")


def test_the_model_is_deployed_after_its_gate(package: Any) -> None:
    tasks = package.spec["root"]["dag"]["tasks"]
    (branch,) = (name for name in tasks if name.startswith("condition"))
    assert "metric-gate" in tasks[branch]["dependentTasks"]


def test_what_an_initializer_cannot_read_is_found_before_a_run(package: Any) -> None:
    with pytest.raises(click.ClickException, match="model_initializer"):
        checks.check(package, {"model_initializer": {"uri": "hf://a/b"}})


def test_every_parameter_has_a_description_and_a_default_that_is_something(package: Any) -> None:
    for name, parameter in package.spec["root"]["inputDefinitions"]["parameters"].items():
        assert len(parameter["description"]) > 10, name
        assert parameter.get("defaultValue") is not None, name


def test_the_steps_that_wait_get_their_grace(package: Any) -> None:
    executors = package.platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    for name in ("exec-train-job", "exec-kserve-deploy"):
        assert steps.KILL_COMMAND in executors[name]["podMetadata"]["annotations"]
