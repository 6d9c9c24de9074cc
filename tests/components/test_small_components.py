import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import compiler, dsl

from kfp_pytorch.components.metric_gate import metric_gate
from kfp_pytorch.components.tensorboard import tensorboard


@dsl.component(install_kfp_package=False)
def measure(accuracy: float, metrics: dsl.Output[dsl.Metrics]):
    metrics.log_metric("accuracy", accuracy)


@dsl.pipeline
def gated(accuracy: float = 0.9):
    measured = measure(accuracy=accuracy)
    gate = metric_gate(metrics=measured.outputs["metrics"], metric="accuracy", minimum=0.95)
    tensorboard(key="run").after(gate)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("compiled") / "p.yaml"
    compiler.Compiler().compile(gated, str(path))
    return next(yaml.safe_load_all(path.read_text()))


def test_no_default_is_null(spec: dict[str, Any]) -> None:
    for name in ("comp-metric-gate", "comp-tensorboard"):
        component = spec["components"][name]
        for definition in component["inputDefinitions"]["parameters"].values():
            assert definition["defaultValue"] is not None


def test_the_viewer_s_artifact_has_the_name_and_type_that_the_ui_looks_for(
    spec: dict[str, Any],
) -> None:
    outputs = spec["components"]["comp-tensorboard"]["outputDefinitions"]["artifacts"]
    artifact = outputs["mlpipeline_ui_metadata"]
    assert artifact["artifactType"]["schemaTitle"] == "system.Artifact"


class Step:
    """A component run as on a cluster: by KFP's executor, from the source in the package."""

    def __init__(self, component: Any, folder: Path) -> None:
        self.folder = folder
        self.name = component.name.replace("-", "_")
        source = component.component_spec.implementation.container.command[-1]
        (folder / "component.py").write_text(source)

    def run(self, **executor_input: Any) -> subprocess.CompletedProcess[str]:
        executor_input["outputs"]["outputFile"] = str(self.folder / "out.json")
        command = ["-m", "kfp.dsl.executor_main", "--component_module_path"]
        command += [str(self.folder / "component.py"), "--function_to_execute", self.name]
        command += ["--executor_input", json.dumps(executor_input)]
        environ = {**os.environ, "_KFP_RUNTIME": "true", "KUBECONFIG": str(self.folder / "none")}
        return subprocess.run(
            [sys.executable, *command],
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @property
    def parameters(self) -> dict[str, Any]:
        return json.loads((self.folder / "out.json").read_text())["parameterValues"]


def artifact(name: str, title: str, uri: Path, **metadata: Any) -> dict[str, Any]:
    kind = {"schemaTitle": f"system.{title}", "schemaVersion": "0.0.1"}
    return {"artifacts": [{"name": name, "type": kind, "uri": str(uri), "metadata": metadata}]}


def gate(folder: Path, minimum: float) -> tuple[Step, subprocess.CompletedProcess[str]]:
    step = Step(metric_gate, folder)
    parameters = {"metric": "accuracy", "minimum": minimum, "maximum": 1e308}
    metrics = artifact("metrics", "Metrics", folder / "m", accuracy=0.953, store_session_info="x")
    done = step.run(
        inputs={"parameterValues": parameters, "artifacts": {"metrics": metrics}}, outputs={}
    )
    return step, done


def test_the_gate_passes_on_the_value(tmp_path: Path) -> None:
    step, done = gate(tmp_path, 0.95)
    assert done.returncode == 0, done.stderr
    assert step.parameters == {"value": 0.953}


def test_the_gate_s_refusal_is_the_last_that_stderr_says(tmp_path: Path) -> None:
    _, done = gate(tmp_path, 0.97)
    assert done.returncode == 1
    assert done.stderr.rstrip().splitlines()[-1] == (
        "accuracy is 0.953, under the minimum of 0.97 by 0.017. The pipeline stops here."
    )
    assert "Traceback" not in done.stderr


def test_the_view_is_made_without_any_cluster(tmp_path: Path) -> None:
    step = Step(tensorboard, tmp_path)
    ui = tmp_path / "deep" / "mlpipeline_ui_metadata"
    guide = tmp_path / "deep" / "how_to_open"
    outputs = {
        "artifacts": {
            "mlpipeline_ui_metadata": artifact("ui", "Artifact", ui),
            "how_to_open": artifact("guide", "Markdown", guide),
        }
    }
    parameters = {
        "output_uri": "pvc://claim/logs",
        "key": "run-1",
        "image": "",
        "output_secret": "",
        "namespace": "",
        "labels": {},
    }
    done = step.run(inputs={"parameterValues": parameters}, outputs=outputs)
    assert done.returncode == 0, done.stderr
    assert json.loads(ui.read_text())["outputs"][0]["source"] == "volume://logs/logs/run-1"
    assert "No Tensorboard object" in step.parameters["shown"]
