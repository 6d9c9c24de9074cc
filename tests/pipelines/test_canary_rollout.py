"""The shipped pipeline with a canary: its order, its branches, its size."""

import json

import pytest

from kfp_pytorch.client.packages import find as packages
from kfp_pytorch.client.packages import workflow
from kfp_pytorch.pipelines import steps

# Half of what Kubernetes stores of a Workflow.
WORKFLOW_LIMIT = 524_288


@pytest.fixture(scope="module")
def package():
    return packages.find_one("canary_rollout")


@pytest.fixture(scope="module")
def tasks(package):
    return package.spec["root"]["dag"]["tasks"]


def test_the_workflow_of_a_run_is_less_than_half_of_the_limit(package):
    assert workflow.estimate(package.spec, package.platform).stored < WORKFLOW_LIMIT


def test_what_was_checked_is_what_is_promoted_or_rolled_back(package, tasks):
    (branches,) = (name for name in tasks if name.startswith("condition-branches"))
    assert "canary-check" in tasks[branches]["dependentTasks"]
    inner = package.spec["components"][f"comp-{branches}"]["dag"]["tasks"]
    conditions = [task["triggerPolicy"]["condition"] for task in inner.values()]
    assert "== 'promote'" in conditions[0]
    assert conditions[1].startswith("!(")
    actions = []
    for name in inner:
        rolls = package.spec["components"][f"comp-{name}"]["dag"]["tasks"]
        (task,) = rolls.values()
        inputs = task["inputs"]["parameters"]
        assert inputs["revision"]["componentInputParameter"].endswith("kserve-deploy-revision")
        actions.append(inputs["action"]["runtimeValue"]["constant"])
    assert actions == ["promote", "rollback"]


def test_canary_and_stable_revision_are_asked_where_the_deployment_says(tasks):
    inputs = tasks["canary-check"]["inputs"]["parameters"]
    for name in ("canary_url", "stable_url"):
        source = {"outputParameterKey": name, "producerTask": "kserve-deploy"}
        assert inputs[name] == {"taskOutputParameter": source}


def test_every_parameter_has_a_description_and_a_default_that_is_something(package):
    parameters = package.spec["root"]["inputDefinitions"]["parameters"]
    for name, parameter in parameters.items():
        assert len(parameter["description"]) > 10, name
        assert parameter.get("defaultValue") is not None, name
    assert parameters["canary_traffic_percent"]["defaultValue"] == 0


def test_no_step_is_taken_from_the_cache_and_long_ones_get_their_grace(package):
    executors = package.platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    long = {name for name, of in executors.items() if "podMetadata" in of}
    waiting = ("pytorch-job", "kserve-deploy", "kserve-rollout", "kserve-rollout-2")
    assert long == {f"exec-{name}" for name in waiting}
    for name in long:
        annotations = executors[name]["podMetadata"]["annotations"]
        assert json.loads(annotations[steps.KILL_COMMAND])[:2] == ["sh", "-c"]
    for component in [package.spec["root"], *package.spec["components"].values()]:
        for task in component.get("dag", {}).get("tasks", {}).values():
            assert not (task.get("cachingOptions") or {}).get("enableCache")
