"""Stands in for KFP's launcher, the parent of a step's program.

    python kfp_launcher.py FOLDER

FOLDER/task.json says what to run; FOLDER is the container's file system as far as KFP writes to
it. It dies of SIGTERM at once, as a program does that has no handler, and leaves its child with a
broken stdout. What it made known of the step lies in FOLDER/published.json.

https://github.com/kubeflow/pipelines/blob/2.16.0/backend/src/v2/component/launcher_v2.go
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

# Without it, `import kfp` is ten times as slow.
os.environ["_KFP_RUNTIME"] = "true"

from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2 as spec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from harness.kfp.metadata import Unrecordable, given_back

LOCAL_FOLDERS = {"gs": "gcs", "s3": "s3", "minio": "minio"}
INPUT_SCHEMES = (*LOCAL_FOLDERS, "mem")

Object = dict[str, Any]


class Failed(Exception):
    """The step fails; the words are what its log ends with."""


class Launcher:
    """One attempt of one step."""

    def __init__(self, folder: Path) -> None:
        task = json.loads((folder / "task.json").read_text())
        self.folder = folder
        self.store = Path(task["store"])
        self.component: Object = task["component"]
        self.command: list[str] = task["command"]
        self.input = json_format.ParseDict(task["executor_input"], spec.ExecutorInput())

    def run(self) -> Object:
        """Run the program; returns its output parameters and artifacts."""
        self._download()
        self._prepare_folders()
        code = self._execute()
        if code:
            raise Failed(f"failed to execute component: exit status {code}")
        return self._publish(self._output())

    def _local(self, uri: str) -> Path | None:
        scheme, _, rest = uri.partition("://")
        folder = LOCAL_FOLDERS.get(scheme)
        return self.folder / folder / rest if folder else None

    def _stored(self, uri: str) -> Path:
        scheme, _, rest = uri.partition("://")
        return self.store / scheme / rest

    def _download(self) -> None:
        for name, listed in self.input.inputs.artifacts.items():
            uri = listed.artifacts[0].uri
            if uri.partition("://")[0] not in INPUT_SCHEMES:
                raise Failed(
                    f"failed to fetch non default buckets: failed to parse bucketConfig for output "
                    f'artifact "{name}" with uri "{uri}": parse bucket config failed: unsupported '
                    f'Cloud bucket: "{uri}"'
                )
            target, source = self._local(uri), self._stored(uri)
            if target is None:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True)
            elif source.is_file():
                shutil.copy(source, target)

    def _prepare_folders(self) -> None:
        for parameter in self.input.outputs.parameters.values():
            Path(parameter.output_file).parent.mkdir(parents=True, exist_ok=True)
        for name, listed in self.input.outputs.artifacts.items():
            path = self._local(listed.artifacts[0].uri)
            if path is None:
                raise Failed(f"failed to generate local storage path for output artifact {name!r}")
            path.parent.mkdir(parents=True, exist_ok=True)

    def _execute(self) -> int:
        # Sorted, as Go writes maps.
        text = json_format.MessageToJson(self._with_defaults(), indent=None, sort_keys=True)
        words = [self._filled(word.replace("{{$}}", text)) for word in self.command]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for line in child.stdout or ():
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        return child.wait()

    def _with_defaults(self) -> spec.ExecutorInput:
        whole = spec.ExecutorInput()
        whole.CopyFrom(self.input)
        declared = self.component.get("inputDefinitions", {}).get("parameters", {})
        for name, parameter in declared.items():
            if "defaultValue" in parameter and name not in whole.inputs.parameter_values:
                value = whole.inputs.parameter_values[name]
                json_format.ParseDict(parameter["defaultValue"], value)
        return whole

    def _filled(self, word: str) -> str:
        """Fill in placeholders as text, wherever they are, inside the JSON of the inputs too."""
        inputs = json_format.MessageToDict(self._with_defaults()).get("inputs", {})
        for name, value in inputs.get("parameterValues", {}).items():
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
            word = word.replace("{{$.inputs.parameters['%s']}}" % name, text)  # noqa: UP031
        return word

    def _output(self) -> spec.ExecutorOutput:
        path = Path(self.input.outputs.output_file)
        if not path.exists():
            return spec.ExecutorOutput()
        try:
            read = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
            return json_format.ParseDict(read, spec.ExecutorOutput())
        except (ValueError, json_format.ParseError) as error:
            raise Failed(f"failed to unmarshall ExecutorOutput in file {path}: {error}") from error

    def _publish(self, output: spec.ExecutorOutput) -> Object:
        artifacts = {}
        for name, listed in self.input.outputs.artifacts.items():
            artifact = listed.artifacts[0]
            if output.artifacts[name].artifacts:
                written = output.artifacts[name].artifacts[0]
                artifact.uri = written.uri or artifact.uri
                artifact.metadata.update(written.metadata)
            path = self._local(artifact.uri)
            if path is None:
                print(f"Output Artifact {name!r} is not uploaded: {artifact.uri}", flush=True)
            elif path.exists():
                self._upload(path, self._stored(artifact.uri))
            read = json_format.MessageToDict(artifact)
            try:
                read["metadata"] = given_back(read.get("metadata", {}), name)
            except Unrecordable as error:
                raise Failed(f"unable to produce MLMD artifact for {name!r}: {error}") from error
            artifacts[name] = read
        parameters = json_format.MessageToDict(output).get("parameterValues", {})
        for name, parameter in self.input.outputs.parameters.items():
            if name not in parameters:
                path = Path(parameter.output_file)
                if not path.exists():
                    raise Failed(f"failed to read output parameter name={name!r}")
                parameters[name] = path.read_text(encoding="utf-8")
        return {"parameters": parameters, "artifacts": artifacts}

    @staticmethod
    def _upload(path: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, target, dirs_exist_ok=True)
        else:
            shutil.copy(path, target)


def _refuse(word: str) -> None:
    raise ValueError(f"invalid value {word}")


def main(folder: Path) -> int:
    """Run one attempt; returns 0, or 1 when it failed."""
    try:
        published = Launcher(folder).run()
    except Failed as error:
        print(error, flush=True)
        return 1
    (folder / "published.json").write_text(json.dumps(published))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
