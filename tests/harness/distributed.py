"""A step of a distributed component on an API server, with rank 0 of its job run for real."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from harness.hands import Hands, Object
from harness.kfp.steps import PIPELINE_ROOT, Where, drive
from kfp import dsl

from kfp_pytorch.launcher.constants import CONFIG_MAP, PYTORCHJOB, SOURCE_MOUNT
from kfp_pytorch.launcher.jobs.registry import KINDS
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.runtime.identity import job_name
from kfp_pytorch.launcher.runtime.stopping import Stopper
from kfp_pytorch.launcher.steps.distribute import read
from kfp_pytorch.launcher.steps.job import train
from kfp_pytorch.launcher.waiting.limits import Limits
from kfp_pytorch.local.kfp.step import Setting

MOUNTS = "/mnt/kfp-pytorch"


class RankFailed(Exception):
    """Rank 0 failed; the argument is the record that it left."""

    @property
    def record(self) -> Object:
        found: Object = self.args[0]
        return found


@dataclass
class Called:
    """What became of a step.

    Attributes:
        job: The job's object.
        message: The termination message of the pod of rank 0.
        parameters: The output parameters, as KFP reads them.
        artifacts: The output artifacts, as KFP reads them.
        contents: What the step wrote as their contents.
    """

    job: Object
    message: str = ""
    parameters: Object = field(default_factory=dict)
    artifacts: dict[str, Object] = field(default_factory=dict)
    contents: dict[str, str] = field(default_factory=dict)


@dataclass
class Caller:
    """Calls distributed components; `folder` has the files of the step and of the pod."""

    hands: Hands
    kube: Kube
    limits: Limits
    folder: Path

    def call(
        self, component: Any, artifacts: Mapping[str, Any] | None = None, **parameters: Any
    ) -> Called:
        """Runs a step to its end, and rank 0 of its job.

        `artifacts`: what KFP hands over of each input artifact, or of several in a list.
        """
        arguments = self._arguments(component, artifacts or {}, parameters)
        kind, outputs, inputs = read(arguments, dsl.Artifact)
        name = job_name(inputs.name, outputs.identity, KINDS[kind].longest_suffix(inputs))
        failed: list[BaseException] = []

        def run() -> None:
            try:
                stopper = Stopper(leave=lambda _: None, grace=10.0)
                train(KINDS[kind], self.kube, inputs, outputs, self.limits, stopper)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.hands.until(lambda: failed or self.hands.find(PYTORCHJOB, name))
        if failed:
            raise failed[0]
        called = Called(self.hands.job(name))
        try:
            self._run_rank(called)
            self.hands.ended(name, 0, called.message)
            self.hands.set_conditions(name, "Created", "Running=False", "Succeeded")
        except RankFailed:
            self.hands.set_conditions(name, "Failed")
            raise
        finally:
            thread.join(60)
        if failed:
            raise failed[0]
        self._read(called, outputs.step)
        return called

    def _arguments(
        self, component: Any, artifacts: Mapping[str, Any], parameters: Mapping[str, Any]
    ) -> list[str]:
        spec = json_format.MessageToDict(component.pipeline_spec)
        (task,) = spec["root"]["dag"]["tasks"]
        where = Where(self.folder, self.folder, Setting("run", "", "default", "wf", "uid", ""))
        made = drive(spec, task, where, parameters)
        declared = made.component.get("inputDefinitions", {}).get("parameters", {})
        defaults = {k: d["defaultValue"] for k, d in declared.items() if "defaultValue" in d}
        given = made.executor_input["inputs"]
        given["parameterValues"] = {**defaults, **given["parameterValues"]}
        given["artifacts"] = {
            name: {"artifacts": found if isinstance(found, list) else [found]}
            for name, found in artifacts.items()
        }
        text = json.dumps(made.executor_input).replace("{container}", str(self.folder))
        # As in a local run: KFP has the artifacts of such a URI in a folder of the root.
        text = text.replace(PIPELINE_ROOT, str(self.folder / "artifacts"))
        return [text if word == "{{$}}" else word for word in made.command]

    def _run_rank(self, called: Called) -> None:
        (container,) = _pod_spec(called.job)["containers"]
        self._write_source(called.job)
        env = {each["name"]: each["value"].replace("$$", "$") for each in container["env"]}
        place = str(self.folder / "pod")
        env = {name: value.replace(MOUNTS, place) for name, value in env.items()}
        ranks = self.folder / "ranks"
        ranks.mkdir()
        env |= {"RANK": "0", "WORLD_SIZE": "1", "KFP_PYTORCH_RANKS": str(ranks)}
        env |= {"_KFP_RUNTIME": "true"}
        ran = subprocess.run(
            [sys.executable, "-m", "kfp_pytorch_distributed.rank"],
            env=os.environ | env,
            capture_output=True,
            text=True,
        )
        result = ranks / "result.json"
        if ran.returncode:
            (record,) = ranks.glob("error-*.json")
            raise RankFailed(json.loads(record.read_text()))
        called.message = result.read_text()

    def _write_source(self, job: Object) -> None:
        volumes = [each["configMap"] for each in _pod_spec(job)["volumes"] if "configMap" in each]
        for volume in volumes:
            found = self.hands.find(CONFIG_MAP, volume["name"])
            assert found is not None
            texts = {key: text.encode() for key, text in (found.get("data") or {}).items()}
            binaries = found.get("binaryData") or {}
            contents = texts | {key: base64.b64decode(text) for key, text in binaries.items()}
            for item in volume["items"]:
                file = Path(SOURCE_MOUNT.replace(MOUNTS, f"{self.folder}/pod"), item["path"])
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(contents[item["key"]])

    @staticmethod
    def _read(called: Called, step: Mapping[str, Any]) -> None:
        outputs = step["outputs"]
        written = json.loads(Path(outputs["outputFile"]).read_text())
        called.parameters = written["parameterValues"]
        for name, of in outputs["parameters"].items():
            file = Path(of["outputFile"])
            if file.exists():
                called.parameters[name] = file.read_bytes().decode()
        for name, found in written["artifacts"].items():
            called.artifacts[name] = found["artifacts"][0]
            file = Path(outputs["artifacts"][name]["artifacts"][0]["uri"])
            if file.is_file():
                called.contents[name] = file.read_text()


def _pod_spec(job: Object) -> Object:
    spec: Object = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    return spec
