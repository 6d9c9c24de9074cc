"""The summary at the end of a run, for a program; `screen` writes it for a person."""

from __future__ import annotations

import graphlib
import itertools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kfp_pytorch.cli.runs import labels
from kfp_pytorch.cli.runs.events import Followed, StepResult
from kfp_pytorch.cli.runs.jobs import Job, job_of
from kfp_pytorch.client import diagnosis
from kfp_pytorch.client.packages.find import Package
from kfp_pytorch.launcher.jobs.distributed.component import REPORT
from kfp_pytorch.launcher.jobs.registry import STEPS

_SUFFIXES = {"system.HTML": ".html", "system.Markdown": ".md"}
# Its metrics are of a server at one moment, and not of a model: its page has them.
_TIMING = ("kserve_predict",)
_CHECKPOINTS = "checkpoints"
_JOB_FOLDERS = (_CHECKPOINTS, "tensorboard")
# A job's newest complete checkpoint is named in it.
_LATEST = "latest"
# The first table of a job's report has no heads; this is one of its rows.
_REPORT_ROW = re.compile(r"^\| ([^|]+) \| ((?:[^|\\]|\\.)*) \|$")
_REPORT_HEAD = "|  |  |"
_STEP_FAILED = re.compile(r"Step \S+ failed\.")


@dataclass(frozen=True)
class Place:
    """Where a run's files are on this machine."""

    run: Path  # the run's folder
    claims: Path | None  # the claims of its namespace; None when the cluster is elsewhere

    @property
    def root(self) -> Path:
        """The folder that has those of all runs."""
        return self.run.parent.parent

    def local(self, uri: str) -> str:
        """Returns the path of what a `pvc://` URI names, where that is on this machine."""
        if self.claims and uri.startswith("pvc://"):
            return str(self.claims / uri.removeprefix("pvc://"))
        return uri


def summarise(package: Package, followed: Followed, place: Place, status: str) -> dict[str, Any]:
    """Makes the summary, the object that `--json` prints.

    `status`: `succeeded`, `failed` or `terminated`.
    """
    parameters = {name: value for s in followed.steps for name, value in s.parameters.items()}
    steps = [*_tasks(followed.steps), *_skipped(package, followed.steps)]
    display = labels.display_names(package.spec)
    error = error_of(followed) if status == "failed" else ""
    names = _labels(followed.steps)
    return empty(package.pipeline_name, status, error) | {
        "run": place.run.name,
        "place": str(place.run),
        "failed": _label(names, followed.failed) if error and followed.failed else "",
        "steps": [
            {
                "name": step.name,
                "label": _label(names, step),
                "status": step.status,
                "seconds": step.seconds,
                "attempts": step.attempt,
                "called": _called(step, display.get(step.name, "")),
            }
            for step in steps
        ],
        "jobs": _jobs(package, followed.steps, names, place),
        "metrics": _metrics(package, followed.steps),
        "model": {"storage_uri": str(parameters.get("storage_uri", ""))},
        "folder": str(parameters.get("folder", "")),
        "endpoint": str(parameters.get("url", "")),
        "prediction": _prediction(parameters.get("sample_prediction")),
        "artifacts": _artifacts(package, followed.steps, names, place),
    }


def empty(pipeline: str, status: str, error: str) -> dict[str, Any]:
    """Makes the summary of a run that ended before its first step: `failed` or `terminated`."""
    return {
        "status": status,
        "pipeline": pipeline,
        "run": "",
        "place": "",
        "failed": "",
        "steps": [],
        "jobs": [],
        "metrics": {},
        "model": {"storage_uri": ""},
        "folder": "",
        "endpoint": "",
        "prediction": None,
        "artifacts": {},
        "error": error,
    }


def error_of(followed: Followed) -> str:
    """Returns the failing step's own message, or what went wrong outside of a step."""
    step = followed.failed
    if step is None:
        return followed.error or "The run ended without a message; its log is in the run's folder."
    silent = f"It said nothing, and ended with exit code {step.exit_code}."
    text = diagnosis.own_words(step.stderr).strip() or step.message.strip() or silent
    return f"Step {step.name} failed.\n{text}"


def headline(error: str) -> str:
    """Shortens what `error_of` returned, whose whole text is in the step's log.

    Returns the first paragraph of a message, or the last lines of a traceback; as it is when no
    step said it.
    """
    step, _, words = error.partition("\n")
    return diagnosis.headline(words) if _STEP_FAILED.fullmatch(step) else error


def _tasks(steps: list[StepResult]) -> list[StepResult]:
    """The last attempt of each task, with the time that all of its attempts took."""
    last = {(step.name, step.task): step for step in steps}
    return [
        replace(
            step,
            seconds=round(sum(s.seconds for s in steps if (s.name, s.task) == task), 3),
        )
        for task, step in last.items()
    ]


def _called(step: StepResult, display: str) -> list[str]:
    """What else the pipeline calls a step: its display name, and its job's `name`."""
    given = str(step.inputs.get("name") or "") if step.function in STEPS else ""
    own = {step.name, step.function.replace("_", "-"), ""}
    return [name for name in dict.fromkeys((display, given)) if name not in own]


def _labels(steps: list[StepResult]) -> dict[tuple[str, str], str]:
    """The label of each task; the attempts of one share it."""
    tasks = {(step.name, step.task): step for step in steps}
    made = labels.labels([(step.name, step.inputs) for step in tasks.values()])
    return dict(zip(tasks, made, strict=True))


def _label(names: Mapping[tuple[str, str], str], step: StepResult) -> str:
    return names.get((step.name, step.task), step.name)


def _jobs(
    package: Package, steps: list[StepResult], names: Mapping[tuple[str, str], str], place: Place
) -> list[dict[str, Any]]:
    """What the run's jobs left, and where; of a step that was tried again, once."""
    last = {(step.name, step.task): step for step in steps}
    found = []
    for step in last.values():
        job = job_of(step.function, step.task, step.inputs, step.component)
        if job is None:
            continue
        checkpoints = Path(place.local(job.folder)) / _CHECKPOINTS
        found.append(
            {
                "step": _label(names, step),
                "status": step.status,
                "name": job.name,
                "folder": place.local(job.folder),
                "report": _report(step),
                "metrics": _metrics(package, [step]),
                "checkpoints": str(checkpoints) if (checkpoints / _LATEST).is_file() else "",
                "elsewhere": place.claims is None,
                "logs": _logs(job, place),
            }
        )
    return found


def _logs(job: Job, place: Place) -> list[dict[str, str]]:
    """Where the log of each node is, if it is on this machine: of several the newest file."""
    if place.claims is None:
        return []
    files = {node: job.log_files(place.root, node, place.claims.name) for node in range(job.nodes)}
    return [
        {"ranks": job.ranks(node), "pod": job.pod(node), "path": str(found[-1])}
        for node, found in files.items()
        if found
    ]


def _report(step: StepResult) -> dict[str, str]:
    """The rows of the table in a job's report that says what ran."""
    written = step.artifacts.get("report") or step.artifacts.get(REPORT) or {}
    path = Path(written.get("uri", ""))
    try:
        lines = iter(path.read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError):
        return {}
    rows: dict[str, str] = {}
    for line in lines:
        row = _REPORT_ROW.match(line)
        if line == _REPORT_HEAD:
            rows = {"": ""}
        elif rows and row:
            rows[row[1]] = re.sub(r"\\(.)", r"\1", row[2])
        elif rows:
            break
    return {name: value for name, value in rows.items() if name.strip(" -")}


def _prediction(text: Any) -> Any:
    """The sample prediction, which kserve_predict outputs as JSON."""
    try:
        return json.loads(text) if isinstance(text, str) and text else None
    except ValueError:
        return text


def _skipped(package: Package, steps: list[StepResult]) -> list[StepResult]:
    """The steps that never ran, in the order in which they would have."""
    executors = package.spec.get("deploymentSpec", {}).get("executors", {})
    names = [label.removeprefix("exec-") for label, e in executors.items() if "container" in e]
    tasks = package.spec["root"].get("dag", {}).get("tasks", {})
    before = {key: task.get("dependentTasks", []) for key, task in tasks.items()}
    order = {
        tasks[key]["componentRef"]["name"].removeprefix("comp-"): position
        for position, key in enumerate(graphlib.TopologicalSorter(before).static_order())
    }
    names.sort(key=lambda name: order.get(name, len(order)))
    ran = {step.name for step in steps}
    return [StepResult(name, "skipped") for name in names if name not in ran]


def _type(package: Package, step: StepResult, output: str) -> str:
    component = package.spec["components"].get(f"comp-{step.name}", {})
    artifacts = component.get("outputDefinitions", {}).get("artifacts", {})
    return str(artifacts.get(output, {}).get("artifactType", {}).get("schemaTitle", ""))


def _metrics(package: Package, steps: list[StepResult]) -> dict[str, float]:
    return {
        name: value
        for step in steps
        if step.function not in _TIMING
        for output, artifact in step.artifacts.items()
        if _type(package, step, output) == "system.Metrics"
        for name, value in artifact.get("metadata", {}).items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def _artifacts(
    package: Package, steps: list[StepResult], names: Mapping[tuple[str, str], str], place: Place
) -> dict[str, str]:
    """Names each artifact and its place; a page gets a name that a browser opens."""
    found: dict[str, str] = {}
    for step in steps:
        # KFP names them in another order in each run.
        for output, artifact in sorted(step.artifacts.items()):
            places = {output: _openable(artifact["uri"], _type(package, step, output))}
            metadata = artifact.get("metadata", {})
            folder = metadata.get("folder")
            if isinstance(folder, str) and folder:
                exported = bool(metadata.get("storage_uri"))
                places |= _job_folders(place.local(folder), exported=exported)
            for name, at in places.items():
                # A further attempt of a step has the places of the one before.
                if at not in found.values():
                    found[_free_name(found, _label(names, step), name)] = at
    return found


def _free_name(taken: dict[str, str], step: str, name: str) -> str:
    """Returns an artifact's name, with the step's where that is taken, as by a loop's iteration."""
    numbered = (f"{step}[{number}].{name}" for number in itertools.count(2))
    names = itertools.chain((name, f"{step}.{name}"), numbered)
    return next(free for free in names if free not in taken)


def _job_folders(folder: str, *, exported: bool) -> dict[str, str]:
    """Names what training left, if it left it: not every container keeps to the contract.

    `exported`: whether it reported an export. Of a folder elsewhere that is all that is known.
    """
    places = {name: f"{folder}/{name}" for name in _JOB_FOLDERS}
    return {n: at for n, at in places.items() if (exported if "://" in at else Path(at).is_dir())}


def _openable(uri: str, kind: str) -> str:
    """Links a page to a name with a suffix, in the same folder.

    The link is a hard one: a browser knows a page by the suffix of the file that a symbolic link
    points at.
    """
    path = Path(uri)
    if kind not in _SUFFIXES or not path.is_file():
        return uri
    link = path.with_name(path.name + _SUFFIXES[kind])
    link.unlink(missing_ok=True)
    link.hardlink_to(path)
    return str(link)
