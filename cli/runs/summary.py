"""The summary at the end of a run, for a person and for a program."""

from __future__ import annotations

import graphlib
import itertools
import json
import math
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_pytorch.cli.packages.find import Package
from kfp_pytorch.cli.runs.events import Followed, StepResult

_SUFFIXES = {"system.HTML": ".html", "system.Markdown": ".md"}
# For programs; the summary shows their content elsewhere.
_NOT_SHOWN = {"metrics", "model", "mlpipeline_ui_metadata", "how_to_open"}
_JOB_FOLDERS = ("checkpoints", "tensorboard")
_LAUNCHER_FAILED = re.compile(r"^\w+ failed\.\n(.)", re.MULTILINE)
_TRACEBACK = re.compile(r"^(Traceback \(most recent call last\):)", re.MULTILINE)
# All but the exception, whose words begin at the left.
_TRACEBACK_HEAD = re.compile(r"\A.*\n  [^\n]*\n(?=\S)", re.DOTALL)
_STEP_FAILED = re.compile(r"Step \S+ failed\.")
_FRAME = re.compile(r'  File "([^"]+)", line \d+')


@dataclass(frozen=True)
class Place:
    """Where a run's files are on this machine."""

    run: Path  # the run's folder
    claims: Path | None  # the claims of its namespace; None when the cluster is elsewhere

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
    steps = [*followed.steps, *_skipped(package, followed.steps)]
    error = error_of(followed) if status == "failed" else ""
    return empty(package.pipeline_name, status, error) | {
        "run": place.run.name,
        "steps": [{"name": s.name, "status": s.status, "seconds": s.seconds} for s in steps],
        "metrics": _metrics(package, followed.steps),
        "model": {"storage_uri": str(parameters.get("storage_uri", ""))},
        "folder": str(parameters.get("folder", "")),
        "endpoint": str(parameters.get("url", "")),
        "prediction": _prediction(parameters.get("sample_prediction")),
        "artifacts": _artifacts(package, followed.steps, place),
    }


def empty(pipeline: str, status: str, error: str) -> dict[str, Any]:
    """Makes the summary of a run that ended before its first step: `failed` or `terminated`."""
    return {
        "status": status,
        "pipeline": pipeline,
        "run": "",
        "steps": [],
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
    text = _own_words(step.stderr).strip() or step.message.strip() or silent
    return f"Step {step.name} failed.\n{text}"


def headline(error: str) -> str:
    """Shortens what `error_of` returned, whose whole text the step has written already.

    Returns the first paragraph of a message, or the last lines of a traceback; as it is when it is
    short, or when no step said it.
    """
    step, _, words = error.partition("\n")
    if not _STEP_FAILED.fullmatch(step):
        return error
    shown = _TRACEBACK_HEAD.sub("", words) if _TRACEBACK.match(words) else words.split("\n\n")[0]
    if shown == words:
        return error
    last = "Only a part of its message is repeated here; all of it is in the step's output above."
    return f"{step}\n{shown}\n{last}"


def _own_words(stderr: str) -> str:
    """Returns a launcher's message, or the last traceback, from the end of a step's stderr."""
    for heading in (_LAUNCHER_FAILED, _TRACEBACK):
        found = list(heading.finditer(stderr))
        if found:
            return _without_kfp(stderr[found[-1].start(1) :])
    return stderr


def _without_kfp(stderr: str) -> str:
    """Drops the frames of KFP's executor from a traceback: they are the same for every step."""
    kept = []
    inside = False
    for line in stderr.removesuffix("\n").split("\n"):
        frame = _FRAME.match(line)
        if frame:
            inside = "<frozen runpy>" in frame[1] or "/kfp/dsl/" in frame[1]
        elif not line.startswith("    "):
            inside = False
        if not inside:
            kept.append(line)
    return "\n".join(kept)


def text(summary: dict[str, Any], seconds: float, *, kept: bool) -> str:
    """Writes what `summarise` returned for a person; `kept`: whether the endpoint stays up."""
    lines = [f"{summary['pipeline']} {summary['status']} in {seconds:.1f} s", ""]
    width = max((len(s["name"]) for s in summary["steps"]), default=0)
    for step in summary["steps"]:
        took = f"{step['seconds']:6.1f} s" if step["status"] != "skipped" else " " * 8
        lines.append(f"  {step['name']:<{width}}  {took}  {step['status']}")
    details = _details(summary, kept)
    if details:
        lines.append("")
        width = max(len(name) for name, _ in details)
        lines += [f"  {name:<{width}}  {value}" for name, value in details]
    return "\n".join(lines)


def _details(summary: dict[str, Any], kept: bool) -> list[tuple[str, str]]:
    details = []
    if summary["metrics"]:
        shown = (f"{name} {value:.4g}" for name, value in summary["metrics"].items())
        details.append(("metrics", ", ".join(shown)))
    artifacts = summary["artifacts"].items()
    kinds = ((name, name.rpartition(".")[2], at) for name, at in artifacts)
    details += [(n, _command(kind, at)) for n, kind, at in kinds if kind not in _NOT_SHOWN]
    if uri := summary["model"]["storage_uri"]:
        # Where nothing was exported, the component outputs the folder in its place.
        details.append(("job's folder" if uri == summary["folder"] else "model at", uri))
    if summary["endpoint"]:
        note = "" if kept else "  (ended with this command; --keep leaves it up)"
        details.append(("endpoint", summary["endpoint"] + note))
    if summary["prediction"]:
        details.append(("prediction", json.dumps(summary["prediction"])))
    return details


def _command(kind: str, at: str) -> str:
    return f"tensorboard --logdir {shlex.quote(at)}" if kind == "tensorboard" else at


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
        for output, artifact in step.artifacts.items()
        if _type(package, step, output) == "system.Metrics"
        for name, value in artifact.get("metadata", {}).items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def _artifacts(package: Package, steps: list[StepResult], place: Place) -> dict[str, str]:
    """Names each artifact and its place; a page gets a name that a browser opens."""
    found: dict[str, str] = {}
    for step in steps:
        # KFP names them in another order in each run.
        for output, artifact in sorted(step.artifacts.items()):
            places = {output: _openable(artifact["uri"], _type(package, step, output))}
            metadata = artifact.get("metadata", {})
            folder = metadata.get("folder")
            if isinstance(folder, str) and folder:
                exported = metadata.get("storage_uri", folder) != folder
                places |= _job_folders(place.local(folder), exported=exported)
            for name, at in places.items():
                # A further attempt of a step has the places of the one before.
                if at not in found.values():
                    found[_free_name(found, step.name, name)] = at
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
