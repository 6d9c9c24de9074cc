"""One step of a pipeline as KFP on Argo runs it, with what kfp.local does not do.

- Its inputs and the URIs of its outputs are fixed once; every attempt of the step gets the same.
- Input artifacts are downloaded whole before the program starts, from schemes that KFP knows.
- Output artifacts are uploaded only after a success, their metadata in the form of ML Metadata.
- The program is a child of KFP's launcher, with its output piped; on SIGTERM that dies at once,
  and the program is killed within a second.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from harness.kfp import emissary

from kfp_pytorch.launcher.constants import POD, WORKFLOW
from kfp_pytorch.local import client, lifecycle
from kfp_pytorch.local.kfp.step import Setting
from kfp_pytorch.local.processes import guarded

Object = dict[str, Any]

PIPELINE_ROOT = "minio://mlpipeline/v2/artifacts"
# How long after SIGTERM a step is killed: 0 to 1 s on a cluster.
KILL_AFTER = 0.5


@dataclass(frozen=True)
class Where:
    """What all steps of a run share.

    Attributes:
        folder: Everything that a run leaves on disk; `store` below it is the object store.
        kubeconfig: What `KUBECONFIG` is for the steps.
        setting: The run, its Workflow object and the API server that has it.
    """

    folder: Path
    kubeconfig: Path
    setting: Setting


@dataclass(frozen=True)
class Ended:
    """How one attempt of a step ended.

    Attributes:
        code: The exit code that Argo sees.
        log: What the step wrote, stdout and stderr.
        message: What its termination log held.
        parameters: Its output parameters; empty when it failed.
        artifacts: Its output artifacts as the next step gets them; empty when it failed.
    """

    code: int
    log: str
    message: str
    parameters: Object = field(default_factory=dict)
    artifacts: dict[str, Object] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """A step with its inputs, as the driver resolved them.

    Attributes:
        name: The task's name.
        component: Its component's specification.
        command: The container's command and arguments.
        executor_input: The same for every try.
    """

    name: str
    component: Object
    command: list[str]
    executor_input: Object


def workflow(server: str, token: str, namespace: str = "default") -> Setting:
    """Make the Workflow object of a run."""
    run = str(uuid.uuid4())
    name = f"run-{run[:8]}"
    metadata = {"name": name, "labels": {"pipeline/runid": run}}
    body = {"apiVersion": WORKFLOW.api_version, "kind": WORKFLOW.kind, "metadata": metadata}
    url = client.path(WORKFLOW, namespace)
    made = client.request(server, "POST", url, body, token=token)
    return Setting(run, "", namespace, name, made["metadata"]["uid"], server, token)


def new_run(root: Path, folder: Path) -> Where:
    """Make a run on the local cluster of a folder; skips the test where there is none.

    Args:
        root: The cluster's folder.
        folder: Where the run leaves what it leaves.
    """
    handle = lifecycle.status(root)
    if handle is None:
        pytest.skip("steps have pods on the local cluster only")
    return Where(folder, handle.kubeconfig, workflow(handle.url, handle.token))


def drive(
    package: Object,
    task: str,
    where: Where,
    parameters: Mapping[str, Any] | None = None,
    artifacts: Mapping[str, Object] | None = None,
) -> Task:
    """Make a task's executor input as KFP's driver does.

    Args:
        package: The pipeline's specification, in image form.
        task: The task's key in the pipeline.
        where: Its run.
        parameters: Its parameters; those left out get the component's defaults.
        artifacts: Its input artifacts.

    Raises:
        ValueError: A parameter is None: the driver knows no value for it.
    """
    spec = package["root"]["dag"]["tasks"][task]
    component = package["components"][spec["componentRef"]["name"]]
    container = package["deploymentSpec"]["executors"][component["executorLabel"]]["container"]
    for name, value in (parameters or {}).items():
        if value is None:
            raise ValueError(f"task {task}: cannot resolve the parameter {name!r}: it is null")
    outputs = component.get("outputDefinitions", {})
    # A placeholder: each attempt has a container's folder of its own.
    local = "{container}/tmp/kfp/outputs"
    root = f"{PIPELINE_ROOT}/{where.setting.workflow}/{where.setting.run_id}/{task}/{uuid.uuid4()}"
    given = {
        "inputs": {
            "parameterValues": dict(parameters or {}),
            "artifacts": {name: {"artifacts": [a]} for name, a in (artifacts or {}).items()},
        },
        "outputs": {
            "parameters": {
                name: {"outputFile": f"{local}/{name}"} for name in outputs.get("parameters", {})
            },
            "artifacts": {
                name: {
                    "artifacts": [
                        {
                            "name": name,
                            "uri": f"{root}/{name}",
                            "type": {"schemaTitle": declared["artifactType"]["schemaTitle"]},
                            "metadata": {},
                        }
                    ]
                }
                for name, declared in outputs.get("artifacts", {}).items()
            },
            "outputFile": f"{local}/executor_output.json",
        },
    }
    command = [*container["command"], *container.get("args", [])]
    return Task(task, component, command, given)


class Try:
    """One attempt of a step: a pod."""

    def __init__(
        self, task: Task, where: Where, number: int = 0, kill_after: float = KILL_AFTER
    ) -> None:
        self.folder = where.folder / "pods" / f"{task.name}-{number}"
        self.folder.mkdir(parents=True)
        self._where = where
        own = copy.deepcopy(task.executor_input)
        text = json.dumps(own).replace("{container}", str(self.folder))
        what = {
            "executor_input": json.loads(text),
            "component": task.component,
            "command": task.command,
            "store": str(where.folder / "store"),
        }
        pod = {"setting": asdict(where.setting), "step": task.name, "kill_after": kill_after}
        (self.folder / "task.json").write_text(json.dumps(what))
        (self.folder / "pod.json").write_text(json.dumps(pod))
        environment = {**os.environ, "KUBECONFIG": str(where.kubeconfig)}
        self._process: subprocess.Popen[str] = guarded.popen(
            [sys.executable, emissary.__file__, str(self.folder)], grace=30, env=environment
        )

    @property
    def log(self) -> str:
        """What the step has written so far."""
        path = self.folder / "log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def until_it_says(self, words: str, within: float = 300) -> Try:
        """Wait for words in the step's log."""
        deadline = time.monotonic() + within
        while words not in self.log:
            assert self._process.poll() is None, self.log
            assert time.monotonic() < deadline, f"never said {words!r}:\n{self.log}"
            time.sleep(0.02)
        return self

    def terminate(self) -> Try:
        """Do what ending the run does: signal the step, which is killed a moment later."""
        self._process.terminate()
        return self

    def drain(self) -> Try:
        """Do what draining the node does: delete the step's pod, which signals it too."""
        setting = self._where.setting
        url = client.path(POD, setting.namespace, (self.folder / "pod-name").read_text())
        client.request(setting.server, "DELETE", url, token=setting.token)
        return self.terminate()

    def kill(self) -> Try:
        """Take the whole pod away at once, as a node does that loses power."""
        (self.folder / emissary.NODE_DIED).touch()
        return self.terminate()

    def wait(self, within: float = 300) -> Ended:
        """Wait until the pod has ended."""
        try:
            code = self._process.wait(within)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            raise AssertionError(f"the step did not end within {within} s:\n{self.log}") from None
        message = self.folder / "termination-log"
        published = self.folder / "published.json"
        made = json.loads(published.read_text()) if published.exists() else {}
        return Ended(code, self.log, message.read_text() if message.exists() else "", **made)
