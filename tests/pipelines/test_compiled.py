"""Every compiled pipeline is accepted by KFP's backend, as far as its rules can be checked here."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from google.protobuf import json_format
from harness.kfp_api import rules
from kfp.kubernetes.kubernetes_executor_config_pb2 import KubernetesExecutorConfig
from kfp.pipeline_spec import pipeline_spec_pb2

import kfp_pytorch
from kfp_pytorch.client.packages import backends, find, workflow
from kfp_pytorch.client.packages.messages import kubernetes_settings
from kfp_pytorch.components import forms

COMPILED = Path(kfp_pytorch.__file__).parent.parent / "compiled"
# What the README says that a cluster needs.
OLDEST = (2, 15)
LONGEST_ARGUMENT = 131_072


@pytest.fixture(params=sorted(COMPILED.glob("*.yaml")), ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


def test_the_server_takes_it_and_every_message_in_it_is_read_strictly(path: Path) -> None:
    documents = list(yaml.load_all(path.read_text(encoding="utf-8"), yaml.CSafeLoader))
    spec, platform = rules.checked_package(documents)
    deployment = spec["deploymentSpec"]
    json_format.ParseDict(deployment, pipeline_spec_pb2.PipelineDeploymentConfig())
    settings = kubernetes_settings(platform)
    for label, setting in settings.items():
        json_format.ParseDict(setting, KubernetesExecutorConfig())
        assert label in deployment["executors"]


def test_the_backends_compiler_finds_every_component_and_executor(path: Path) -> None:
    # As backend/src/v2/compiler/visitor.go goes through them.
    spec = find.find_one(str(path)).spec
    executors = spec["deploymentSpec"]["executors"]
    seen: set[str] = set()
    to_come = [("root", spec["root"])]
    while to_come:
        name, component = to_come.pop()
        if "dag" in component:
            assert component["dag"]["tasks"], name
            for task in component["dag"]["tasks"].values():
                called = task["componentRef"]["name"]
                if called not in seen:
                    to_come.append((called, spec["components"][called]))
                    seen.add(called)
        else:
            assert executors[component["executorLabel"]].keys() <= {"container", "importer"}, name
    assert seen == set(spec["components"])


@pytest.mark.parametrize("launcher", ["image=registry.example.com/launcher:1", "package"])
def test_in_each_other_form_its_workflow_is_smaller(path: Path, launcher: str) -> None:
    package = find.find_one(str(path))
    other = forms.with_launcher(package.spec, launcher)
    found = workflow.estimate(other, package.platform).whole
    assert found < workflow.estimate(package.spec, package.platform).whole
    documents = [other, package.platform] if package.platform else [other]
    rules.checked_package(documents)


def test_its_workflow_stays_below_half_of_the_limit(path: Path) -> None:
    package = find.find_one(str(path))
    assert workflow.estimate(package.spec, package.platform).whole < workflow.LIMIT // 2
    assert backends.needed(package) <= OLDEST


def test_no_argument_of_a_step_is_longer_than_linux_takes(path: Path) -> None:
    package = find.find_one(str(path))
    for executor in package.spec["deploymentSpec"]["executors"].values():
        container = executor["container"]
        for text in [*container.get("command", []), *container.get("args", [])]:
            assert len(text.encode()) < LONGEST_ARGUMENT
