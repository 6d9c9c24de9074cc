"""The shipped pipeline for spot nodes: what its job may lose, and what stops what does not work."""

from __future__ import annotations

from typing import Any

import click
import pytest

from kfp_pytorch.client.packages import checks
from kfp_pytorch.client.packages import find as packages
from kfp_pytorch.client.packages.known_tasks import known_tasks


@pytest.fixture(scope="module")
def package() -> Any:
    return packages.find_one("elastic_train")


def job(package: Any, **arguments: Any) -> Any:
    (task,) = (t for t in known_tasks(package, arguments) if t.function == "pytorch_job")
    return checks.job_of(task)["spec"]


def test_the_job_may_lose_and_gain_nodes_and_tolerates_those_that_may_go(package: Any) -> None:
    spec = job(package, num_nodes=3, min_nodes=2, max_nodes=8, max_restarts=40)
    policy = spec["elasticPolicy"]
    assert (policy["minReplicas"], policy["maxReplicas"], policy["maxRestarts"]) == (2, 8, 40)
    assert spec["runPolicy"]["backoffLimit"] == 40
    (worker,) = spec["pytorchReplicaSpecs"].values()
    assert worker["replicas"] == 3
    assert worker["restartPolicy"] == "ExitCode"
    tolerated = {each["key"] for each in worker["template"]["spec"]["tolerations"]}
    assert tolerated == {"cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority"}
    (container,) = worker["template"]["spec"]["containers"]
    assert "--checkpoint-every-steps=50" in container["args"]


def test_nodes_and_queue_are_the_user_s_to_choose(package: Any) -> None:
    labels = {"karpenter.sh/capacity-type": "spot"}
    scheduling = {"scheduler": "kueue", "queue": "team-a"}
    made = job(package, node_selector=labels, scheduling=scheduling, placement={"gpus": 2})
    template = made["pytorchReplicaSpecs"]["Worker"]["template"]
    assert template["spec"]["nodeSelector"] == labels
    assert template["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"


def test_a_start_outside_of_the_range_is_found_before_a_run(package: Any) -> None:
    with pytest.raises(click.ClickException, match="num_nodes is 9, and elastic allows 1 to 4"):
        checks.check(package, {"num_nodes": 9})


def test_a_step_that_fails_trains_on_and_one_that_is_not_good_deploys_nothing(package: Any) -> None:
    tasks = package.spec["root"]["dag"]["tasks"]
    assert tasks["pytorch-job"]["retryPolicy"]["maxRetryCount"] == 2
    assert "metric-gate" in tasks["kserve-deploy"]["dependentTasks"]


def test_every_parameter_has_a_description_and_a_default_that_is_something(package: Any) -> None:
    for name, parameter in package.spec["root"]["inputDefinitions"]["parameters"].items():
        assert len(parameter["description"]) > 10, name
        assert parameter.get("defaultValue") is not None, name
