"""register_model as a component: run by KFP's executor, and in the pipeline of its README."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.registries import kubeflow, mlflow
from harness.registries.serving import serve

from kfp_pytorch.client.packages import checks
from kfp_pytorch.client.packages import find as packages
from kfp_pytorch.components import register_model
from kfp_pytorch.launcher.kserve.manifest import manifest, parse_inputs
from kfp_pytorch.launcher.steps import register_model as step

README = Path(inspect.getfile(register_model.python_func)).parent / "README.md"
LABELS = "modelregistry.kubeflow.org"


@pytest.fixture(scope="module")
def readme(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The specification of the pipeline in the README, which has been checked."""
    (source,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    path = tmp_path_factory.mktemp("readme") / "pipeline.py"
    path.write_text(source)
    package = packages.find_one(f"{path}:train_register_serve")
    checks.check(package)
    return package.spec


def test_the_model_is_deployed_with_the_ids_that_it_is_registered_under(
    readme: dict[str, Any],
) -> None:
    tasks = readme["root"]["dag"]["tasks"]
    assert tasks["register-model"]["dependentTasks"] == ["metric-gate", "pytorch-job"]
    given = tasks["kserve-deploy"]["inputs"]["parameters"]
    labels = given["labels"]["runtimeValue"]["constant"]
    for label, output in {
        f"{LABELS}/registered-model-id": "registered_model_id",
        f"{LABELS}/model-version-id": "model_version_id",
    }.items():
        (name,) = re.findall(r"parameters\['(.+)'\]", labels[label])
        assert given[name]["taskOutputParameter"] == {
            "outputParameterKey": output,
            "producerTask": "register-model",
        }


def test_a_service_gets_the_labels_of_the_registry_that_was_asked() -> None:
    ids = {f"{LABELS}/registered-model-id": "1", f"{LABELS}/model-version-id": ""}
    inputs = parse_inputs("s3://models/digits", {}, service_name="digits", labels=ids)
    labels = manifest(inputs, None)["metadata"]["labels"]
    assert ids.items() <= labels.items()


def test_the_step_s_outputs_are_the_component_s(readme: dict[str, Any]) -> None:
    outputs = readme["components"]["comp-register-model"]["outputDefinitions"]["parameters"]
    annotation = register_model.python_func.__annotations__["return"]
    assert annotation._fields == step.Outputs._fields
    assert set(outputs) == set(step.Outputs._fields)
    assert not readme["root"]["dag"]["tasks"]["register-model"]["cachingOptions"]


def artifact(name: str, title: str, uri: Path, **metadata: Any) -> dict[str, Any]:
    kind = {"schemaTitle": f"system.{title}", "schemaVersion": "0.0.1"}
    return {"artifacts": [{"name": name, "type": kind, "uri": str(uri), "metadata": metadata}]}


def test_a_step_registers_to_both_without_any_cluster(tmp_path: Path) -> None:
    source = register_model.component_spec.implementation.container.command[-1]
    (tmp_path / "component.py").write_text(source)
    about = {"storage_uri": "pvc://kfp-pytorch/r/j/export", "job": "j", "sha256": "ab" * 32}
    model = artifact("model", "Model", tmp_path / "model", **about)
    registered = artifact("registered", "Artifact", tmp_path / "deep" / "registered")
    with (
        serve(kubeflow.ModelRegistry(), kubeflow.API) as registry,
        serve(mlflow.Mlflow(), mlflow.API) as tracking,
    ):
        given = {
            "inputs": {
                "parameterValues": {
                    "model_name": "digits",
                    "registry_url": registry.url,
                    "mlflow_tracking_uri": tracking.url,
                },
                "artifacts": {"model": model},
            },
            "outputs": {
                "artifacts": {"registered": registered},
                "outputFile": str(tmp_path / "out.json"),
            },
        }
        command = ["-m", "kfp.dsl.executor_main", "--component_module_path"]
        command += [str(tmp_path / "component.py"), "--function_to_execute", "register_model"]
        done = subprocess.run(
            [sys.executable, *command, "--executor_input", json.dumps(given)],
            env={**os.environ, "_KFP_RUNTIME": "true", "KUBECONFIG": str(tmp_path / "none")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    made = json.loads((tmp_path / "out.json").read_text())
    parameters = made["parameterValues"]
    assert (parameters["model_version_id"], parameters["mlflow_version"]) == ("2", "1")
    assert parameters["version"].startswith("j-")
    (about,) = made["artifacts"]["registered"]["artifacts"]
    assert about["metadata"] == {
        "model_name": "digits",
        "storage_uri": "pvc://kfp-pytorch/r/j/export",
        "sha256": "ab" * 32,
        "registry_url": registry.url,
        "mlflow_tracking_uri": tracking.url,
        **parameters,
    }
