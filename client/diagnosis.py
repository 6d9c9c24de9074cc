"""What a failed step said of its failure, which KFP shows in the step's log alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kfp_pytorch.client.connection import Connection
from kfp_pytorch.client.errors import ClientError, NotFoundError
from kfp_pytorch.client.nodes import Step, container_tasks
from kfp_pytorch.client.packages.messages import kubernetes_settings
from kfp_pytorch.launcher.text import settled

_LAUNCHER_FAILED = re.compile(r"^\w+ failed\.\n(.)", re.MULTILINE)
_TRACEBACK = re.compile(r"^(Traceback \(most recent call last\):)", re.MULTILINE)
# All but the exception, whose words begin at the left.
_TRACEBACK_HEAD = re.compile(r"\A.*\n  File [^\n]*\n(?:  [ [][^\n]*\n)*(?=\S)", re.DOTALL)
_FRAME = re.compile(r'  File "([^"]+)", line \d+')
# What KFP's launcher and Argo's executor write after the program, each in its own form.
_NOT_THE_PROGRAM = re.compile(
    r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w.-]+\.go:\d+\] |time=\"\S+\" level=\w+ |"
    r"Error: exit status \d+$"
)
_EXECUTOR, _DRIVER = "system-container-impl", "system-container-driver"
# Lines of a log: in which a message is looked for, and of one without such the last.
_SEARCHED, _LINES, _SHORT = 2_000, 20, 5


@dataclass(frozen=True)
class Diagnosis:
    """Why a step failed.

    Attributes:
        step: The step's label.
        short: Its message in short, or why that cannot be had.
        text: The whole message; empty where there is none.
    """

    step: str
    short: str
    text: str = ""


def diagnose(
    connection: Connection,
    run_id: str,
    step: Step,
    workflow: str,
    spec: Mapping[str, Any],
    platform: Mapping[str, Any],
    *,
    since: datetime | None,
) -> Diagnosis:
    """Reads a failed step's log and takes its message out of it.

    `workflow`: the name of the run's Workflow. `since`: when the run was created.
    """
    log = ""
    for pod in _pods(step, workflow, spec, platform):
        log = _log(connection, run_id, pod, since)
        if log:
            break
    if not log:
        return Diagnosis(
            step.label,
            "Its log cannot be read here: KFP's endpoint does not give it, or its pod is gone. "
            f"Read it in the UI, or with `kubectl logs -l pipeline/runid={run_id} -c main`.",
        )
    lines = settled(log).splitlines()
    # A program that never ran said nothing, and KFP's own say why.
    program = [line for line in lines if not _NOT_THE_PROGRAM.match(line)] or lines
    text = "\n".join(program[-_SEARCHED:]).strip()
    words = _message(text)
    if words is None:
        last = [line for line in program if line.strip()][-_LINES:]
        return Diagnosis(step.label, "\n".join(last[-_SHORT:]), "\n".join(last))
    return Diagnosis(step.label, headline(words), words)


def own_words(stderr: str) -> str:
    """Returns a launcher's message, or the last traceback, from the end of a step's stderr."""
    found = _message(stderr)
    return stderr if found is None else found


def _message(stderr: str) -> str | None:
    for heading in (_LAUNCHER_FAILED, _TRACEBACK):
        found = list(heading.finditer(stderr))
        if found:
            return _without_kfp(stderr[found[-1].start(1) :])
    return None


def headline(words: str) -> str:
    """Shortens `own_words`: the first paragraph of a message, or a traceback's exception."""
    return _TRACEBACK_HEAD.sub("", words) if _TRACEBACK.match(words) else words.split("\n\n")[0]


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


def _pods(
    step: Step, workflow: str, spec: Mapping[str, Any], platform: Mapping[str, Any]
) -> Iterator[str]:
    """The names that the pod of the failed attempt may have, the likeliest first."""
    templates = list(dict.fromkeys(_templates(step.name, spec, platform)))
    for ending in reversed(step.pods):
        yield from (f"{workflow}-{template}-{ending}" for template in templates)
    for ending in reversed(step.driver_pods):
        yield f"{workflow}-{_DRIVER}-{ending}"


def _templates(task: str, spec: Mapping[str, Any], platform: Mapping[str, Any]) -> Iterator[str]:
    """The names that KFP's compiler gives the template of a task's pod.

    https://github.com/kubeflow/pipelines/blob/2.17.0/backend/src/v2/compiler/argocompiler/container.go
    """
    settings = kubernetes_settings(dict(platform))
    for label in container_tasks(spec).get(task, []):
        metadata = settings.get(label, {}).get("podMetadata")
        counts = (
            [len(metadata.get(kind, {})) for kind in ("annotations", "labels")] if metadata else []
        )
        prefix = f"metadata-{counts[0]}-{counts[1]}-" if counts else ""
        for retried in _retried(task, spec):
            yield f"{prefix}{'retry-' if retried else ''}{_EXECUTOR}"
    yield _EXECUTOR


def _retried(task: str, spec: Mapping[str, Any]) -> Sequence[bool]:
    groups = (spec["root"], *spec.get("components", {}).values())
    same = (group.get("dag", {}).get("tasks", {}).get(task) for group in groups)
    return [found.get("retryPolicy") is not None for found in same if found]


def _log(connection: Connection, run_id: str, pod: str, since: datetime | None) -> str:
    """A pod's log from KFP's API, or its UI where that is the endpoint; empty if neither has it."""
    try:
        text = connection.text(f"/apis/v1alpha1/runs/{run_id}/nodes/{pod}/log")
        # It answers 200 before it looks for the pod.
        return "" if text.startswith('{"error_message"') else text
    except NotFoundError:
        pass
    except ClientError:
        return ""
    query = {"podname": pod, "runid": run_id}
    if connection.namespace:
        query["podnamespace"] = connection.namespace
    if since:
        query["createdat"] = since.strftime("%Y-%m-%d")
    try:
        return connection.text("/k8s/pod/logs", **query)
    except ClientError:
        return ""
