"""Compiled YAML that people hand over: a component alone, and what is no pipeline."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml
from kfp import compiler

from kfp_pytorch.components import metric_gate, pytorch_job

SPEC = {
    "pipelineInfo": {"name": "p"},
    "root": {
        "dag": {"tasks": {"t": {"componentRef": {"name": "comp-t"}, "inputs": {"parameters": {}}}}},
        "inputDefinitions": {"parameters": {"n": {"parameterType": "STRING"}}},
    },
    "components": {"comp-t": {"executorLabel": "exec-t"}},
    "deploymentSpec": {"executors": {"exec-t": {"container": {"image": "i"}}}},
}


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ("root.dag.tasks.t.inputs", 3, "inputs"),
        ("root.dag.tasks.t.inputs", None, "the pipeline.root.dag.tasks.t.inputs is null"),
        ("root.inputDefinitions", True, "inputDefinitions"),
        ("root.inputDefinitions.parameters.n", {}, "parameter n, which has no type"),
        ("root.inputDefinitions.parameters.n.description", 3, "description"),
    ],
)
def test_yaml_of_the_wrong_shape_is_refused_with_the_place(tmp_path, cli, where, value, message):
    spec = copy.deepcopy(SPEC)
    *above, last = where.split(".")
    place = spec
    for key in above:
        place = place[key]
    place[last] = value
    path = tmp_path / "edited.yaml"
    path.write_text(yaml.safe_dump(spec))
    result = cli("compile", path, "--output", tmp_path / "out")
    assert result.exit_code == 1
    assert "edited.yaml is not a compiled pipeline: " in result.output
    assert message in result.output


def test_yaml_that_is_no_pipeline_is_refused(tmp_path, cli):
    path = tmp_path / "other.yaml"
    path.write_text("kind: Pod\n")
    assert "is not a compiled pipeline" in cli("compile", path).output


@pytest.fixture
def component(tmp_path: Path) -> Path:
    """The component, compiled without a pipeline around it."""
    path = tmp_path / "component.yaml"
    compiler.Compiler().compile(pytorch_job, str(path))
    return path


def test_what_kfp_fills_in_is_not_asked_for(component, cli):
    result = cli("run", component, "--local")
    assert "pytorch-job needs -p image=…" in result.output
    assert "task_config" not in result.output


def test_a_component_that_was_compiled_alone_runs(component, cli, tmp_path):
    command = 'command=["python", "-c", "print(\\"hello\\")"]'
    options = ("-p", "image=python:3.12-slim", "-p", command, "--root", tmp_path / "home")
    result = cli("run", component, "--local", *options)
    assert result.exit_code == 0, result.output
    assert "master-0 | hello" in result.output


def test_a_component_that_takes_an_artifact_is_refused_before_anything_starts(tmp_path, cli):
    path = tmp_path / "gate.yaml"
    compiler.Compiler().compile(metric_gate, str(path))
    result = cli("run", path, "--local", "-p", "minimum=0.5", "--root", tmp_path / "home")
    assert result.exit_code == 1
    assert "metric-gate takes the artifact 'metrics'" in result.output
    assert not (tmp_path / "home").exists()
