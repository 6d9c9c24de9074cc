"""The workflows for GitHub: pinned actions, and commands of this project that work."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from harness.kfp_api.server import KfpServer

from kfp_pytorch.cli import main
from kfp_pytorch.client import runs
from kfp_pytorch.launcher.constants import IMAGE_TAG, SERVING_IMAGE, TRAINING_IMAGE

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
KUBEFLOW = ROOT / ".github" / "workflows" / "kubeflow.yaml"
PACKAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "compiled").glob("*.yaml"))


def steps(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text())["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def scripts() -> Iterator[str]:
    """The scripts of the workflow that has a cluster."""
    for step in steps(KUBEFLOW):
        if "run" in step:
            yield re.sub(r"\\\n\s*", "", step["run"])


def commands() -> list[list[str]]:
    """The calls of kfp-pytorch, each as its arguments; one for each package in a loop of these."""
    found = []
    for line in "\n".join(scripts()).splitlines():
        for call in re.findall(r"\bkfp-pytorch ((?:[^;|&'\"]|'[^']*'|\"[^\"]*\")+)", line):
            packages = PACKAGES if "$package" in call else [""]
            found += [shlex.split(call.replace("$package", package)) for package in packages]
    return [arguments for arguments in found if arguments[0] in main.commands]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_a_job_may_read_the_sources_alone(path: Path) -> None:
    text = path.read_text()
    uses = re.findall(r"uses: (.*)", text)
    assert uses
    for each in uses:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each), each
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 120
    # What an author of a pull request writes never becomes part of a script.
    assert not [step for step in steps(path) if "${{" in step.get("run", "")]


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is not installed")
def test_actionlint_finds_nothing() -> None:
    run = subprocess.run(["actionlint", *WORKFLOWS], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


def test_the_scripts_are_of_the_shells_language() -> None:
    for script in scripts():
        subprocess.run(["bash", "-n", "-c", script], check=True)


def test_each_command_takes_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    called = commands()
    assert {arguments[0] for arguments in called} == {
        *("doctor", "launcher", "runs", "upload", "run", "schedule")
    }
    for arguments in called:
        command: click.Command = main
        given = list(arguments)
        while isinstance(command, click.Group):
            command = command.commands[given.pop(0)]
        command.make_context(command.name, given)


def test_every_package_is_uploaded_run_and_scheduled_as_the_workflow_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(runs, "POLL_S", 0.0)
    monkeypatch.setattr(yaml, "SafeLoader", yaml.CSafeLoader)
    server = KfpServer()
    monkeypatch.setenv("KF_PIPELINES_ENDPOINT", server.url)
    try:
        for arguments in commands():
            # These two speak to Kubernetes.
            if arguments[0] not in ("doctor", "launcher"):
                ended = CliRunner().invoke(main, arguments)
                assert ended.exit_code == 0, f"{arguments}: {ended.output}"
        assert len(server.store.versions) == len(PACKAGES)
        assert len(server.store.runs) == len(PACKAGES) + 1
        assert server.store.recurring == {}
    finally:
        server.stop()


def test_the_images_that_are_loaded_are_those_that_the_pipelines_and_the_runtime_name() -> None:
    text = "\n".join(scripts())
    tag = subprocess.run(["make", "--silent", "tag"], cwd=ROOT, capture_output=True, check=True)
    assert tag.stdout.decode().strip() == IMAGE_TAG
    (loaded,) = re.findall(r"for image in (.*); do", text)
    assert {f"{name}:{IMAGE_TAG}" for name in loaded.split()} == {TRAINING_IMAGE, SERVING_IMAGE}
    for file in ("training/Dockerfile", "serving/Dockerfile"):
        assert re.search("^ARG INDEX=", (ROOT / file).read_text(), re.MULTILINE)
    for target in re.findall(r"\bmake (?:--silent )?(\w+)", text):
        assert re.search(f"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_kserve_is_told_what_its_configuration_has() -> None:
    (script,) = (each for each in scripts() if "inferenceservice-config" in each)
    (program,) = re.findall(r"jq '(.*?)'", script, re.DOTALL)
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    config = '{"data": {"deploy": "{\\n \\"a\\": 1\\n}", "ingress": "{\\"b\\": false}"}}'
    made = subprocess.run(["jq", "-c", program], input=config, capture_output=True, text=True)
    assert yaml.safe_load(made.stdout) == {
        "data": {
            "deploy": '{"a":1,"defaultDeploymentMode":"Standard"}',
            "ingress": '{"b":false,"disableIngressCreation":true}',
        }
    }


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_what_is_applied_on_one_node_is_what_is_shipped_with_another_claim() -> None:
    run = subprocess.run(["kubectl", "kustomize", ROOT / "tests" / "kind"], capture_output=True)
    made = list(yaml.load_all(run.stdout, yaml.CSafeLoader))
    kinds = [each["kind"] for each in made]
    assert {"ClusterRole", "RoleBinding", "ConfigMap", "ServingRuntime"} <= set(kinds)
    (claim,) = (each for each in made if each["kind"] == "PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    spaces = {each["metadata"].get("namespace") for each in made if each["kind"] != "ClusterRole"}
    assert spaces == {"kubeflow"}
