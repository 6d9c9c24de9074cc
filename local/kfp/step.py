"""Runs a step's program as KFP's launcher and Argo's executor do on a cluster.

    python -m kfp_pytorch.local.kfp.step NAME -- COMMAND…

kfp.local runs this program in place of the step's command. It creates the step's Pod object, runs
the command as a child with its output piped and with the environment of a step's pod, sends SIGTERM
on to the child's whole process group, and records phase, exit code and termination message in the
Pod object at the end.

It writes events to stdout, one a line: `EVENT_MARK` and a JSON object. The environment variable
`KFP_PYTORCH_STEP` has a `Setting` as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from types import FrameType
from typing import IO, Any

from kfp_pytorch.launcher import constants
from kfp_pytorch.local import client
from kfp_pytorch.local.kfp import commands, packages, without_gpus
from kfp_pytorch.local.kfp.packages import PreparationError
from kfp_pytorch.local.processes import temporary

SETTING_ENV = "KFP_PYTORCH_STEP"
EVENT_MARK = "\x02"
# On a step's pod: NAMESPACE/NAME of the InferenceService that the step makes or changes.
DEPLOYS_ANNOTATION = f"{constants.PREFIX}/deploys"
# No scheduler has this name, so no kubelet runs the pod: its process is this program's child.
SCHEDULER = "kfp-pytorch-step"

# A service, as only pods of its cluster reach it.
_SERVICE_URL = re.compile(r"http://([^./:]+)\.([^./:]+)\.svc(?:\.cluster\.local)?(?::(\d+))?(/.*)?")
# The inputs of a step that are such URLs.
_ASKS = {"kserve_predict": ("url",), "canary_check": ("canary_url", "stable_url")}

GRACE_SECONDS = 5.0
# The kubelet keeps the end of a container's termination message.
MESSAGE_BYTES = 4096
STDERR_LINES = 200


@dataclass(frozen=True)
class Setting:
    """The run of a step."""

    run_id: str  # the run's id, as `pipeline/runid` has it
    folder: str  # the folder of the run's files
    namespace: str = ""  # the namespace of the step's pod
    workflow: str = ""  # the name of the Workflow object that owns the pod
    workflow_uid: str = ""  # its uid
    server: str = ""  # `http://HOST:PORT`; empty when no Pod object is wanted
    token: str = field(default="", repr=False)  # the bearer token; empty when the server wants none
    services: str = ""  # the root of URL/NAMESPACE/SERVICE/PORT/PATH of a remote cluster
    # The variables and volumes of each step's pod, by executor; see `task_settings.pod_settings`.
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    # The executors of the steps whose inputs are to ask for no GPUs; see `without_gpus`.
    without_gpus: list[str] = field(default_factory=list)


class Events:
    """Writes events to stdout, whole lines only."""

    def __init__(self, step: str, pod: str = "") -> None:
        self.step = step
        self.pod = pod
        self._lock = threading.Lock()

    def send(self, event: str, **fields: Any) -> None:
        """Write one event, if stdout is still read."""
        content = {"step": self.step, "pod": self.pod, "event": event, **fields}
        line = EVENT_MARK + json.dumps(content) + "\n"
        with self._lock, contextlib.suppress(OSError):
            sys.stdout.write(line)
            sys.stdout.flush()


class PodObject:
    """The step's Pod object, if the run has an API server."""

    def __init__(self, setting: Setting, step: str) -> None:
        self.setting = setting
        readable = re.sub(r"[^a-z0-9]+", "-", f"{setting.workflow}-{step}".lower())
        self.name = f"{readable[:54].strip('-')}-{secrets.token_hex(4)}"
        self.uid = ""
        self.uses = setting.pods.get(f"exec-{step}", {})
        self.created: dict[str, Any] = {}

    def create(self, annotations: dict[str, str] | None = None) -> None:
        """Create it, pending."""
        if not self.setting.server:
            return
        owner = {
            "apiVersion": constants.WORKFLOW.api_version,
            "kind": constants.WORKFLOW.kind,
            "name": self.setting.workflow,
            "uid": self.setting.workflow_uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
        metadata = {
            "name": self.name,
            "labels": {constants.KFP_RUN_ID_LABEL: self.setting.run_id},
            "annotations": annotations or {},
            "ownerReferences": [owner],
        }
        container = {"name": "main", "image": "this-python", "command": ["python3"]}
        container |= {key: self.uses[key] for key in ("env", "volumeMounts") if key in self.uses}
        spec = {"schedulerName": SCHEDULER, "restartPolicy": "Never", "containers": [container]}
        spec |= {key: self.uses[key] for key in ("volumes",) if key in self.uses}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        url = client.path(constants.POD, self.setting.namespace)
        self.created = self._request("POST", url, body)
        self.uid = self.created["metadata"]["uid"]

    def find(self, kind: constants.Kind, name: str) -> dict[str, Any] | None:
        """Read an object of the pod's namespace; None if there is none."""
        url = client.path(kind, self.setting.namespace, name)
        try:
            return self._request("GET", url)
        except client.RequestRefused as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    def started(self, when: datetime) -> None:
        """Record that the program runs."""
        self._status("Running", {"running": {"startedAt": _rfc3339(when)}})

    def ended(self, exit_code: int, message: str, when: datetime) -> None:
        """Record how the program ended."""
        phase, reason = ("Failed", "Error") if exit_code else ("Succeeded", "Completed")
        state = {
            "exitCode": exit_code,
            "reason": reason,
            "message": message,
            "finishedAt": _rfc3339(when),
        }
        self._status(phase, {"terminated": state})

    def _status(self, phase: str, state: dict[str, Any]) -> None:
        if not self.uid:
            return
        container = {
            "name": "main",
            "image": "this-python",
            "imageID": "",
            "ready": "running" in state,
            "restartCount": 0,
            "state": state,
        }
        body = {"status": {"phase": phase, "containerStatuses": [container]}}
        url = client.path(constants.POD, self.setting.namespace, self.name, subresource="status")
        # The cluster may be stopping; that is no failure of the step.
        with contextlib.suppress(OSError, client.RequestRefused):
            self._request("PATCH", url, body)

    def _request(self, method: str, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return client.request(self.setting.server, method, url, body, token=self.setting.token)


class Program:
    """The step's command, as a child in a process group of its own."""

    def __init__(self, command: list[str], environment: dict[str, str], events: Events) -> None:
        self.events = events
        self.signalled = False
        self.stderr_end: deque[str] = deque(maxlen=STDERR_LINES)
        self._child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def terminate(self, _number: int, _frame: FrameType | None) -> None:
        """Signal the whole group, as Argo does, and kill it after a grace period."""
        self.signalled = True
        self._signal_group(signal.SIGTERM)
        timer = threading.Timer(GRACE_SECONDS, self._signal_group, [signal.SIGKILL])
        timer.daemon = True
        timer.start()

    def add_line(self, text: str) -> None:
        """Add a line to the program's output."""
        self.stderr_end.append(text)
        self.events.send("line", text=text)

    def wait(self) -> int:
        """Pass the output on until the last process of the group closes it; returns the code.

        On SIGTERM the shell around KFP's program ends before the program does.
        """
        reader = threading.Thread(target=self._copy, args=[self._child.stderr, self.stderr_end])
        reader.start()
        self._copy(self._child.stdout, deque(maxlen=0))
        reader.join()
        code = self._child.wait()
        if self.signalled:
            return constants.EXIT_TERMINATED
        return 128 - code if code < 0 else code

    def _copy(self, stream: IO[bytes] | None, end: deque[str]) -> None:
        for raw in stream or ():
            line = raw.decode("utf-8", "replace").rstrip("\r\n")
            end.append(line)
            self.events.send("line", text=line)

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, number)


def main(arguments: list[str]) -> int:
    """Run one step; returns its exit code."""
    step, separator, *command = arguments
    if separator != "--" or not command:
        raise SystemExit(f"usage: {sys.argv[0]} NAME -- COMMAND…")
    began = time.monotonic()
    setting = Setting(**json.loads(os.environ[SETTING_ENV]))
    command = _with_reachable_url(command, setting.services)
    if f"exec-{step}" in setting.without_gpus:
        command = commands.with_inputs(command, without_gpus.inputs(commands.inputs(command)))
    pod = PodObject(setting, step)
    events = Events(step, pod.name)
    events.send(
        "started",
        task=commands.executor_input(command).get("outputs", {}).get("outputFile", ""),
        function=commands.option(command, "--function_to_execute"),
        inputs=commands.inputs(command),
        component=commands.option(command, "--distributed"),
    )
    try:
        pod.create(_deploys(command, setting.namespace))
    except (OSError, client.RequestRefused) as error:
        return _not_started(events, f"The pod of this step could not be made: {error}", began)
    try:
        commands.clear_outputs(command)
    except OSError as error:
        return _not_started(events, f"Outputs of an earlier attempt stay: {error}", began)
    log = Path(setting.folder) / "steps" / pod.name / "termination-log"
    log.parent.mkdir(parents=True)
    log.touch()
    # KFP's command leaves the step's source there, as in a container that is removed.
    with tempfile.TemporaryDirectory(
        prefix="kfp-pytorch-", dir=temporary.short_folder(), ignore_cleanup_errors=True
    ) as scratch:
        variables = environment(pod, log) | {"TMPDIR": scratch}
        try:
            command, variables = _prepared(pod, command, variables, events)
        except PreparationError as error:
            pod.ended(1, str(error), datetime.now(UTC))
            return _not_started(events, str(error), began)
        program = Program(command, variables, events)
        signal.signal(signal.SIGTERM, program.terminate)
        pod.started(datetime.now(UTC))
        code = _outcome(program, command)
    message = log.read_bytes()[-MESSAGE_BYTES:].decode("utf-8", "replace")
    pod.ended(code, message, datetime.now(UTC))
    events.send(
        "ended",
        exit=code,
        terminated=program.signalled,
        seconds=round(time.monotonic() - began, 3),
        message=message,
        stderr="" if code == 0 else "\n".join(program.stderr_end),
        outputs=commands.outputs(command),
    )
    return code


def _prepared(
    pod: PodObject, command: list[str], variables: dict[str, str], events: Events
) -> tuple[list[str], dict[str, str]]:
    """The command and the variables, once all that they need is there.

    Raises PreparationError: an object is missing, or packages cannot be installed.
    """
    root = Path(pod.setting.folder).parents[1]
    if pod.uses:
        # Few steps need what this imports.
        from kfp_pytorch.local.kfp import objects_used

        scratch = Path(variables["TMPDIR"])
        command, declared = objects_used.apply(pod, command, scratch, root)
        variables = variables | declared
    command, found = packages.installed(
        command, root, variables, lambda text: events.send("line", text=text)
    )
    return command, variables | found


def _not_started(events: Events, message: str, began: float) -> int:
    took = round(time.monotonic() - began, 3)
    outcome = {"message": message, "stderr": message, "outputs": {}}
    events.send("ended", exit=1, terminated=False, seconds=took, **outcome)
    return 1


def _outcome(program: Program, command: list[str]) -> int:
    """Waits for the program's end; to KFP, exit code 0 without the outputs is a failure."""
    code = program.wait()
    missing = commands.missing_outputs(command) if code == 0 else []
    if not missing:
        return code
    program.add_line(
        f"The program ended with exit code 0, but gave no value of its output "
        f"{', '.join(missing)}: its function returned None, or the process ended before it "
        "returned. KFP fails such a step."
    )
    return 1


def environment(pod: PodObject, log: Path) -> dict[str, str]:
    """Returns the environment of the step's program."""
    variables = dict(os.environ)
    variables.pop(SETTING_ENV, None)
    # KFP's commands run `python3`, which is to be the Python that has this project.
    here = str(Path(sys.executable).parent)
    variables["PATH"] = os.pathsep.join([here, variables.get("PATH", os.defpath)])
    variables["PYTHONUNBUFFERED"] = "1"
    variables[constants.TERMINATION_LOG_ENV] = str(log)
    if pod.uid and pod.setting.folder:
        variables[constants.CLAIMS_ENV] = str(Path(pod.setting.folder).parents[1] / "claims")
    if pod.uid:
        variables[constants.KFP_POD_NAME_ENV] = pod.name
        variables[constants.KFP_POD_UID_ENV] = pod.uid
    return variables


def _deploys(command: list[str], namespace: str) -> dict[str, str]:
    """The annotation of a step that deploys a model; none for other steps."""
    if commands.option(command, "--function_to_execute") != "kserve_deploy":
        return {}
    inputs = commands.inputs(command)
    where = inputs.get("namespace") or namespace
    return {DEPLOYS_ANNOTATION: f"{where}/{inputs.get('service_name', '')}"}


def _with_reachable_url(command: list[str], services: str) -> list[str]:
    """Has a step that asks a service of a cluster elsewhere ask it through `services`."""
    values = commands.inputs(command)
    asks = _ASKS.get(commands.option(command, "--function_to_execute"), ()) if services else ()
    urls = {}
    for name in asks:
        if found := _SERVICE_URL.fullmatch(str(values.get(name, ""))):
            service, namespace, port, path = found.groups()
            urls[name] = f"{services}/{namespace}/{service}/{port or 80}{path or '/'}"
    return commands.with_inputs(command, values | urls) if urls else command


def _rfc3339(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
