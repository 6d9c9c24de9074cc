"""Runs one pipeline with kfp.local, as a process of its own.

    python -m kfp_pytorch.local.kfp.runner FOLDER

kfp.local keeps global state, clears logging handlers and leaves the processes of its tasks running
when it is killed; so it gets a process, under a guard. Each step writes its events to stdout (see
`step`); this program adds an event when kfp.local fails outside of a step.

`FOLDER/run.json` is a `Run` as JSON, `FOLDER/pipeline.json` the pipeline's specification.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from types import FrameType, ModuleType
from typing import IO, Any, TextIO, cast

from kfp_pytorch.launcher import constants
from kfp_pytorch.local.kfp import conditions, own_defaults, placeholders, step, task_settings
from kfp_pytorch.local.processes import guard

RUN_FILE = "run.json"
PIPELINE_FILE = "pipeline.json"
# Comes before a step's name and its command.
_STEP = [sys.executable, "-m", step.__name__]
# Linux's MAX_ARG_STRLEN.
_ARGUMENT_BYTES = 131_072
# kfp.local writes names in colours, for a terminal.
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Run:
    """A local run's identity, which a resumed run keeps.

    The URIs of its artifacts depend on `name`, and the names of jobs depend on these URIs.
    """

    name: str  # the name of the run's folder below the folder of all runs
    id: str  # the run's id, the value of `dsl.PIPELINE_JOB_ID_PLACEHOLDER`
    pipeline: str  # the pipeline's name
    arguments: dict[str, Any] = field(default_factory=dict)  # those that were given, by parameter
    # The options of its command that it has again when it is resumed, by field of the request.
    options: dict[str, Any] = field(default_factory=dict)


def local_form(
    spec: dict[str, Any],
    name: str,
    kubernetes: dict[str, Any] | None = None,
    known: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Makes the specification that kfp.local runs: every command is run by `step`.

    It gets the name of the run: KFP takes a pipeline with a component's name for that component.
    `kubernetes`, `known`: see `task_settings.with_task_configs`.
    """
    result = task_settings.with_task_configs(spec, kubernetes, known)
    own_defaults.fill_in(result)
    placeholders.fill_in(result, name, datetime.now(UTC))
    result["pipelineInfo"]["name"] = name
    for label, executor in result.get("deploymentSpec", {}).get("executors", {}).items():
        container = executor.get("container")
        if container and container.get("command"):
            step_command = [*_STEP, label.removeprefix("exec-"), "--"]
            container["command"] = [*step_command, *container["command"]]
    return result


def run(folder: Path) -> None:
    """Runs the pipeline of a folder to its end. Raises whatever kfp.local raises."""
    leave_out_client()
    from kfp import components, local

    wanted = Run(**json.loads((folder / RUN_FILE).read_text(encoding="utf-8")))
    override_kfp(wanted)
    local.init(
        runner=local.SubprocessRunner(use_venv=False),
        pipeline_root=str(folder.parent),
        raise_on_error=True,
    )
    pipeline = components.load_component_from_text(
        (folder / PIPELINE_FILE).read_text(encoding="utf-8")
    )
    pipeline(**wanted.arguments)


def leave_out_client() -> None:
    """Has `import kfp` leave out its client, which takes longer than all that kfp.local needs."""
    absent = ModuleType("kfp.client")
    absent.Client = None  # type: ignore[attr-defined]
    sys.modules.setdefault("kfp.client", absent)


def override_kfp(wanted: Run) -> None:
    """Replaces seven functions of kfp.local that no setting changes.

    - The pipeline's resource name, a part of every URI, has the time in it; a resumed run keeps
      its own.
    - The run's id is random digits; here it is the run's.
    - `python3` is replaced in every argument, also in the user's strings; `step` sets PATH instead.
      An argument that is too long for a process is refused with the step's name.
    - A whole number inside a list or dict becomes `3.0`; the backend writes `3`, and sorts the keys
      of a dict.
    - A step's inputs are read as JSON after values are put into it as they are. A step whose inputs
      that breaks or changes fails, and says over which value.
    - A step fails over an argument that is None, where the backend uses the default; see
      `own_defaults`.
    - A condition is False whenever kfp.local cannot evaluate it; see `conditions`.
    """
    from kfp.local import executor_input_utils, placeholder_utils, subprocess_task_handler
    from kfp.local.orchestrator.enhanced_dag_orchestrator import ConditionEvaluator

    executor_input_utils.get_local_pipeline_resource_name = lambda _: wanted.name
    # The first id is the run's; those that follow are of its tasks.
    ids = itertools.chain([wanted.id], (f"{wanted.id}-{n}" for n in itertools.count(1)))
    placeholder_utils.make_random_id = lambda: next(ids)
    subprocess_task_handler.replace_python_executable = _startable
    executor_input_utils.executor_input_to_dict = _as_the_backend_writes(
        executor_input_utils.executor_input_to_dict
    )
    placeholder_utils.replace_placeholders = _failing_if_unsafe(
        placeholder_utils.replace_placeholders
    )
    executor_input_utils.construct_executor_input = own_defaults.without_nones(
        executor_input_utils.construct_executor_input
    )
    ConditionEvaluator.evaluate_condition = staticmethod(
        conditions.evaluator(ConditionEvaluator._resolve_pipeline_channel)
    )


_terminated = False


def _startable(command: list[str], _executable: str) -> list[str]:
    if _terminated:
        raise SystemExit(constants.EXIT_TERMINATED)
    size = max(len(argument.encode()) for argument in command)
    if size >= _ARGUMENT_BYTES:
        raise ValueError(
            f"step {command[len(_STEP)]} is handed {size:,} bytes in one argument, which holds all "
            f"of its inputs; Linux takes less than {_ARGUMENT_BYTES:,}, here and on a cluster. "
            "Hand what is large on as an artifact, not as a parameter."
        )
    return command


def _failing_if_unsafe(original: Callable[..., list[str]]) -> Callable[..., list[str]]:
    def replace_placeholders(
        full_command: list[str], executor_input_dict: dict[str, Any], **keywords: Any
    ) -> list[str]:
        problem = placeholders.problem_of(
            executor_input_dict.get("inputs", {}).get("parameterValues", {})
        )
        if problem and full_command[: len(_STEP)] == _STEP:
            # A step like others, which is told and retried as they are.
            own = [*_STEP, full_command[len(_STEP)], "--"]
            failing = [sys.executable, "-c", "import sys; sys.exit(sys.argv[1])", problem]
            inputs = json.dumps(executor_input_dict)
            rest = [inputs if word == "{{$}}" else word for word in full_command[len(own) :]]
            return [*own, *failing, *rest]
        return original(full_command, executor_input_dict, **keywords)

    return replace_placeholders


def _as_the_backend_writes(
    original: Callable[..., dict[str, Any]],
) -> Callable[..., dict[str, Any]]:
    def executor_input_to_dict(*arguments: Any, **keywords: Any) -> dict[str, Any]:
        result = original(*arguments, **keywords)
        values = result.get("inputs", {}).get("parameterValues", {})
        for name, value in values.items():
            # KFP's name for a value that is a part of another.
            if name.startswith("pipelinechannel--") and isinstance(value, float):
                values[name] = int(value) if value.is_integer() else value
            else:
                values[name] = _in_order(value)
        return result

    return executor_input_to_dict


def _in_order(value: Any) -> Any:
    """A value whose dicts have sorted keys, as Go writes a map."""
    if isinstance(value, dict):
        return {key: _in_order(value[key]) for key in sorted(value)}
    return [_in_order(item) for item in value] if isinstance(value, list) else value


def _terminate(_number: int, _frame: FrameType | None) -> None:
    """Pass the signal on to the steps; kfp.local waits for them while it unwinds."""
    global _terminated
    _terminated = True
    for pid, parent in guard.parents().items():
        if parent == os.getpid():
            # It may have ended meanwhile.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
    raise SystemExit(constants.EXIT_TERMINATED)


class LockedFile:
    """A text file that several threads write to; Python mixes long writes otherwise."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        """Write a text whole; returns how many characters it has."""
        with self._lock:
            return self._file.write(text)

    def flush(self) -> None:
        """Pass on what is written."""
        with self._lock:
            self._file.flush()


def main(arguments: list[str]) -> int:
    """Run the pipeline; returns 0, 1 after a failure, or 143 after SIGTERM."""
    # A line is shown when it is written: Python keeps 8 KiB of what goes to a pipe.
    cast("TextIOWrapper", sys.stdout).reconfigure(line_buffering=True)
    sys.stdout = cast("TextIO", LockedFile(sys.stdout))
    warnings.simplefilter("ignore", FutureWarning)
    signal.signal(signal.SIGTERM, _terminate)
    folder = Path(arguments[0])
    try:
        run(folder)
    except Exception as error:
        reason = _COLOURS.sub("", str(error))
        step.Events("").send("error", message=f"{type(error).__name__}: {reason}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
