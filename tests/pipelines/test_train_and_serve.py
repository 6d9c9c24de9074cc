"""The shipped pipeline: what a person uploads, and what a backend makes of it."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from kfp import components

import kfp_pytorch
from kfp_pytorch.client.packages import find as packages
from kfp_pytorch.client.packages import workflow
from kfp_pytorch.launcher.constants import DEFAULT_OUTPUT_URI, TRAINING_IMAGE
from kfp_pytorch.pipelines import steps
from kfp_pytorch.training.arguments.config import DATASETS

ROOT = Path(kfp_pytorch.__file__).parent.parent
COMPILED = ROOT / "compiled" / "train_and_serve.yaml"
CONTAINER_LIMIT = 3_072
WORKFLOW_LIMIT = 500_000
LONG = {"pytorch-job", "kserve-deploy"}


@pytest.fixture(scope="module")
def package():
    return packages.find_one("train_and_serve")


@pytest.fixture(scope="module")
def tasks(package):
    return package.spec["root"]["dag"]["tasks"]


def executors(package):
    return package.spec["deploymentSpec"]["executors"]


def test_compiled_package_is_what_the_code_compiles_to(package):
    assert COMPILED.read_text() == package.text(), "Run `make compiled`."


def test_compiled_package_loads():
    loaded = components.load_component_from_file(str(COMPILED))
    assert loaded.name == "train-and-serve"


def test_every_shipped_pipeline_is_compiled_and_nothing_else():
    assert {path.stem for path in COMPILED.parent.glob("*.yaml")} == set(packages.shipped())


def test_steps_and_the_workflow_of_a_run_are_small_enough_for_a_backend(package):
    assert workflow.estimate(package.spec, package.platform).stored < WORKFLOW_LIMIT
    for label, executor in executors(package).items():
        text = json.dumps(executor["container"], separators=(",", ":"))
        assert len(text.encode()) < CONTAINER_LIMIT, label


def test_no_step_is_ever_taken_from_the_cache(tasks):
    """Not even the gate: it would let a model pass with another one's metrics."""
    assert len(tasks) == 5
    assert not [name for name, task in tasks.items() if task.get("cachingOptions")]


def test_order_is_view_train_gate_deploy_check(tasks):
    assert tasks["pytorch-job"]["dependentTasks"] == ["tensorboard"]
    assert tasks["metric-gate"]["dependentTasks"] == ["pytorch-job"]
    assert set(tasks["kserve-deploy"]["dependentTasks"]) == {"metric-gate", "pytorch-job"}
    assert "kserve-deploy" in tasks["kserve-predict"]["dependentTasks"]


def test_every_parameter_has_type_description_and_a_default_that_is_something(package):
    parameters = package.spec["root"]["inputDefinitions"]["parameters"]
    assert {"image", "num_nodes", "dataset", "min_accuracy", "output_uri"} <= parameters.keys()
    for name, parameter in parameters.items():
        assert parameter["parameterType"] != "PARAMETER_TYPE_ENUM_UNSPECIFIED", name
        assert len(parameter["description"]) > 10, name
        assert parameter.get("defaultValue") is not None, name
    assert parameters["num_nodes"]["defaultValue"] == 2
    assert parameters["min_accuracy"]["defaultValue"] == 0.97
    assert parameters["output_uri"]["defaultValue"] == DEFAULT_OUTPUT_URI
    assert parameters["image"]["defaultValue"] == TRAINING_IMAGE
    assert "make images" in parameters["image"]["description"]


def test_no_unset_parameter_is_forwarded_to_a_task(package):
    """The driver fails on a componentInputParameter without a value."""
    for component in [package.spec["root"], *package.spec["components"].values()]:
        parameters = component.get("inputDefinitions", {}).get("parameters", {})
        defined = {name: "defaultValue" in spec for name, spec in parameters.items()}
        for task in component.get("dag", {}).get("tasks", {}).values():
            for source in task.get("inputs", {}).get("parameters", {}).values():
                forwarded = source.get("componentInputParameter")
                assert forwarded is None or defined[forwarded], (task, source)


def test_no_constant_is_none_and_the_runs_id_is_a_whole_argument(tasks):
    assert "null" not in json.dumps(tasks)
    for name in ("tensorboard", "pytorch-job"):
        key = tasks[name]["inputs"]["parameters"]["key"]
        assert key == {"runtimeValue": {"constant": "{{$.pipeline_job_uuid}}"}}


def test_texts_reach_training_as_arguments_without_a_shell(tasks):
    inputs = tasks["pytorch-job"]["inputs"]["parameters"]
    assert inputs["command"]["runtimeValue"]["constant"] == ["python", "-m", "kfp_pytorch.training"]
    assert inputs["args"] == {"componentInputParameter": "extra_args"}
    assert set(inputs["hyperparameters"]["runtimeValue"]["constant"]) == {
        *("batch-size", "data-dir", "dataset", "epochs", "lr", "model", "seed"),
    }


def test_long_steps_are_neither_moved_nor_killed_with_their_launcher(package):
    platform = package.platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    for name in LONG:
        annotations = platform[f"exec-{name}"]["podMetadata"]["annotations"]
        assert annotations[steps.SAFE_TO_EVICT] == "false"
        assert json.loads(annotations[steps.KILL_COMMAND])[:2] == ["sh", "-c"]


def test_kill_command_signals_python_and_nothing_else(package, tmp_path):
    """Argo fills in the signal's number and runs the command in the container."""
    for pid, program in {
        "1": "argoexec",
        "7": "launcher-v2",
        "21": "python3.12",
        "30": "sh",
    }.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "exe").symlink_to(f"/usr/bin/{program}")
    platform = package.platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    annotations = platform["exec-pytorch-job"]["podMetadata"]["annotations"]
    shell, option, script = json.loads(annotations[steps.KILL_COMMAND])
    assert script.count("%") == 1  # the rest would be formatted, too
    script = (script % 15).replace("/proc/", f"{tmp_path}/")
    told = "kill() { echo signal $*; }; "  # nothing is killed here
    ran = subprocess.run([shell, option, told + script], capture_output=True, text=True, check=True)
    assert ran.stdout == "signal -15 21\n"


def test_the_package_needs_no_image_of_ours_to_start_and_installs_kfp_alone(package):
    for executor in executors(package).values():
        assert executor["container"]["image"] == "python:3.12-slim"
        install = executor["container"]["command"][2]
        assert install.count("pip install") == 1
        assert re.search(r"pip install --quiet --no-warn-script-location 'kfp==[\d.]+'", install)


def test_no_parameters_description_has_a_line_break_and_datasets_names_all(package):
    parameters = package.spec["root"]["inputDefinitions"]["parameters"]
    assert not [name for name, each in parameters.items() if "\n" in each["description"]]
    assert all(name in parameters["dataset"]["description"] for name in DATASETS)
