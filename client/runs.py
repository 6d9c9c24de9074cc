"""Runs on a KFP endpoint: looked at, followed, terminated, retried, deleted."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import kfp_server_api

from kfp_pytorch.client import diagnosis, experiments, nodes, pages
from kfp_pytorch.client.connection import Connection, Effect
from kfp_pytorch.client.errors import (
    ClientError,
    ConflictError,
    NotFoundError,
    RefusedError,
)
from kfp_pytorch.client.nodes import Names, Node, Step

Object = dict[str, Any]
# What KFP calls the states of runs, in this package's words.
_STATUSES = {
    "PENDING": "pending",
    "RUNNING": "running",
    "CANCELING": "terminating",
    "PAUSED": "paused",
    "SUCCEEDED": "succeeded",
    "SKIPPED": "skipped",
    "FAILED": "failed",
    "CANCELED": "terminated",
}
ENDED = ("succeeded", "skipped", "failed", "terminated")
# With some room for what KFP writes around them: Linux takes no argument above 131,072 bytes.
_LARGEST = 130_000
_ACCOUNT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# In how many of the newest runs the beginning of an id is looked for.
_SEARCHED = 200
# Seconds between two looks at a run; KFP hears of it about every ten.
POLL_S = 5.0
# How often a run that has ended is looked at again for the ends of its nodes, and how many seconds
# apart: KFP writes the state first, then a label at the Workflow, then the nodes.
_LOOKS, SETTLING_PAUSE_S = 5, 1.0
# For how long a server that fails is asked while a run goes on.
_FOLLOWING_S = 600.0


@dataclass(frozen=True)
class Run:
    """A run as KFP knows it.

    Attributes:
        run_id: Its id.
        name: The name that it was given.
        status: `pending`, `running`, `terminating`, `succeeded`, `failed`, `terminated`, `skipped`
            or `paused`. KFP calls a terminated run FAILED.
        state: KFP's own word.
        experiment_id: The id of its experiment.
        recurring_run_id: The id of the schedule that started it; empty when a person did.
        created: When it was made.
        finished: When it ended; None while it has not.
        steps: Those that have begun or that are skipped, in the order in which they began.
        alive: What has not ended though KFP calls the run FAILED: `delete` ends it.
        failed: The label of the step that failed first; empty if none did, or KFP names none.
        error: Why it failed, in short; empty until that was asked for.
        diagnosis: The failed step's whole message; empty until that was asked for.
        url: Its page in KFP's UI; empty where the UI's address is not known.
    """

    run_id: str
    name: str
    status: str
    state: str
    experiment_id: str
    recurring_run_id: str
    created: datetime | None
    finished: datetime | None
    steps: tuple[Step, ...] = ()
    alive: tuple[str, ...] = ()
    failed: str = ""
    error: str = ""
    diagnosis: str = ""
    url: str = ""

    @property
    def ended(self) -> bool:
        """Whether KFP says that it has ended."""
        return self.status in ENDED

    @property
    def seconds(self) -> float:
        """How long it took, or has taken until now."""
        if self.created is None:
            return 0.0
        return max(0.0, ((self.finished or datetime.now(UTC)) - self.created).total_seconds())


@dataclass
class _Seen:
    """What is known of a run besides what KFP lists each time."""

    spec: Object = field(default_factory=dict)
    platform: Object = field(default_factory=dict)
    names: Names = field(default_factory=Names)


def get(connection: Connection, run_id: str, *, why: bool = False) -> Run:
    """Looks at a run. `why`: whether to read why it failed, from its step's log.

    Raises NotFoundError, ClientError.
    """
    seen = _Seen()
    run = _look(connection, run_id, seen)
    return _explained(connection, run, seen) if why else run


def find(connection: Connection, asked: str) -> str:
    """The id of a run by its id, the beginning of one, its name, or `latest`.

    Raises NotFoundError, ClientError: there is none, or more than one.
    """
    if not asked.strip():
        # It is the beginning of every id.
        raise ClientError("The run has no name: give its id, the beginning of one, or its name.")
    if _ID.fullmatch(asked):
        return asked
    if asked == "latest":
        found = list(listed(connection, most=1))
    else:
        found = list(listed(connection, most=_SEARCHED, filter=pages.equals(name=asked)))
    if not found:
        recent = listed(connection, most=_SEARCHED)
        found = [run for run in recent if str(run.run_id).startswith(asked)]
    if not found:
        raise NotFoundError(
            f"There is no run {asked!r}. `kfp-pytorch runs list` shows those that there are."
        )
    if len(found) > 1:
        ids = ", ".join(str(run.run_id) for run in found[:5])
        raise ClientError(f"{len(found)} runs are called {asked!r}. Name one by its id: {ids}.")
    return str(found[0].run_id)


def newest(
    connection: Connection, *, most: int = 20, experiment: str = "", schedule: str = ""
) -> list[Run]:
    """The newest runs; of an experiment by its name, or of a schedule by its id."""
    query: Object = {}
    if experiment:
        query["experiment_id"] = experiments.id_of(connection, experiment, make=False)
    if schedule:
        query["filter"] = pages.equals(recurring_run_id=schedule)
    return [run_of(connection, found) for found in listed(connection, most=most, **query)]


def follow(connection: Connection, run_id: str) -> Iterator[Run]:
    """Looks at a run until it has ended; the last look says why it failed.

    Yields it whenever KFP tells something new of it. Raises ClientError.
    """
    seen, before = _Seen(), None
    while True:
        run = _look(connection, run_id, seen, patience_s=_FOLLOWING_S)
        if run.ended:
            yield _explained(connection, run, seen)
            return
        if _told(run) != before:
            before = _told(run)
            yield run
        time.sleep(POLL_S)


def terminate(connection: Connection, run_id: str) -> None:
    """Asks KFP to end a run. Raises ConflictError: it has ended; `delete` ends what goes on."""
    run = get(connection, run_id)
    if run.ended:
        words = f"Run {run_id} has ended ({run.status}), and KFP terminates no such run."
        if run.alive:
            words += f" {going_on(run)}"
        raise ConflictError(words)
    end = connection.client.runs.run_service_terminate_run
    try:
        connection.call(end, run_id=run_id, effect=Effect.ACTS)
    except RefusedError:
        # It ended by itself, or an answer was lost and the call made again.
        run = get(connection, run_id)
        if not run.ended and run.status != "terminating":
            raise


def retry(connection: Connection, run_id: str) -> None:
    """Has KFP run again what failed; steps that succeeded are kept.

    Raises ConflictError: the run has not failed, or a part of it goes on.
    """
    run = get(connection, run_id)
    if run.status not in ("failed", "terminated"):
        raise ConflictError(
            f"Run {run_id} is {run.status}; only one that failed or was terminated can be retried."
        )
    if run.alive:
        raise ConflictError(f"KFP retries no such run: {going_on(run)}")
    again = connection.client.runs.run_service_retry_run
    connection.call(again, run_id=run_id, effect=Effect.ACTS)


def delete(connection: Connection, run_id: str) -> None:
    """Deletes a run, its Workflow, and with that its pods and jobs. Raises NotFoundError."""
    _get(connection, run_id)
    remove = connection.client.runs.run_service_delete_run
    try:
        connection.call(remove, run_id=run_id, effect=Effect.ACTS)
    except NotFoundError:
        # An answer was lost, and the call made again.
        return


def going_on(run: Run) -> str:
    """Says what goes on of a run that KFP calls FAILED, and how to end it."""
    return (
        f"KFP calls the run FAILED, but {', '.join(run.alive)} had not ended when it said so: pods "
        f"and jobs may go on. `kfp-pytorch runs delete {run.run_id}` deletes the run's Workflow, "
        "and with it all of them."
    )


def _look(
    connection: Connection, run_id: str, seen: _Seen, *, patience_s: float | None = None
) -> Run:
    """Looks at a run; at one that has ended a few times, until KFP says so of its nodes, too."""
    for look in range(1 + _LOOKS):
        if look:
            time.sleep(SETTLING_PAUSE_S)
        found = _get(connection, run_id, patience_s=patience_s)
        _learn_source(connection, found, seen)
        run = run_of(connection, found, seen)
        listed = _nodes(found)
        if not run.ended or (listed and not nodes.unfinished(listed)):
            break
    return run


def _get(connection: Connection, run_id: str, patience_s: float | None = None) -> Any:
    read = connection.client.runs.run_service_get_run
    return connection.call(read, run_id=run_id, patience_s=patience_s)


def settings(arguments: Mapping[str, Any], pipeline_root: str, service_account: str) -> Object:
    """How a run, or those of a schedule, are to be started, as the API takes it.

    Raises ClientError: no pod could start with it.
    """
    if service_account and not _ACCOUNT.fullmatch(service_account):
        raise ClientError(
            f"The service account is {service_account!r}; it takes lower case letters, digits, '-' "
            "and '.', and begins and ends with a letter or digit."
        )
    size = len(json.dumps(dict(arguments), ensure_ascii=False).encode())
    if size > _LARGEST:
        raise ClientError(
            f"The parameters of the run have {size:,} bytes; KFP hands them to a program as one "
            f"argument, and that has {_LARGEST:,} at most. Put the data where the steps can read "
            "it, and give its address."
        )
    root = {"pipeline_root": pipeline_root} if pipeline_root else {}
    account = {"service_account": service_account} if service_account else {}
    return {"runtime_config": {"parameters": dict(arguments), **root}, **account}


def listed(connection: Connection, *, most: int, **query: Any) -> Iterator[Any]:
    """The newest runs as the API has them."""
    if "experiment_id" not in query:
        query |= connection.within
    method = connection.client.runs.run_service_list_runs
    return pages.every(connection, method, "runs", most=most, sort_by="created_at desc", **query)


def _learn_source(connection: Connection, found: Any, seen: _Seen) -> None:
    """Reads the pipeline of a run, once."""
    if seen.spec:
        return
    held = found.pipeline_spec
    reference = found.pipeline_version_reference
    if not held and reference is not None:
        read = connection.client.pipelines.pipeline_service_get_pipeline_version
        try:
            ids = (reference.pipeline_id, reference.pipeline_version_id)
            version = connection.call(read, pipeline_id=ids[0], pipeline_version_id=ids[1])
        except (NotFoundError, RefusedError):
            return
        held = version.pipeline_spec
    if held:
        seen.spec = held.get("pipeline_spec", held)
        seen.platform = held.get("platform_spec") or {}


def run_of(connection: Connection, found: Any, seen: _Seen | None = None) -> Run:
    """A run in this package's words; without its steps where `seen` is None."""
    state = str(found.state or "")
    history = [str(each.state) for each in found.state_history or []]
    status = _STATUSES.get(state, state.lower() or "pending")
    if status == "failed" and history[-2:-1] == ["CANCELING"]:
        status = "terminated"
    listed = _nodes(found)
    now = datetime.now(UTC)
    tasks = list(nodes.container_tasks(seen.spec)) if seen and seen.spec else []
    steps = nodes.steps(listed, seen.names, tasks, now) if seen else []
    failed = [step.label for step in steps if step.status == nodes.FAILED]
    return Run(
        run_id=str(found.run_id),
        name=str(found.display_name),
        status=status,
        state=state,
        experiment_id=str(found.experiment_id or ""),
        recurring_run_id=str(found.recurring_run_id or ""),
        created=found.created_at,
        finished=found.finished_at if status in ENDED else None,
        steps=tuple(steps),
        alive=tuple(nodes.unfinished(listed)) if status in ("failed", "terminated") else (),
        failed=failed[0] if failed else "",
        error=str(found.error.message or "") if found.error else "",
        url=connection.link(f"runs/details/{found.run_id}"),
    )


def _nodes(found: Any) -> list[Node]:
    tasks: list[kfp_server_api.V2beta1PipelineTaskDetail] = []
    if found.run_details is not None:
        tasks = found.run_details.task_details or []
    return [
        Node(
            task.display_name,
            nodes.status_of(task.state),
            frozenset(child.pod_name for child in task.child_tasks or [] if child.pod_name),
            task.start_time,
            # KFP writes the year 1 for an end that is to come.
            task.end_time if task.end_time and task.end_time.year > 1970 else None,
        )
        for task in tasks
        # Those without a name are what KFP's launcher keeps for the cache.
        if task.display_name
    ]


def _explained(connection: Connection, run: Run, seen: _Seen) -> Run:
    """The run with the reason of its failure."""
    if run.status != "failed":
        return run
    failed = next((step for step in run.steps if step.label == run.failed), None)
    if failed is None:
        words = run.error or "KFP does not say which step failed; see the run's page or Workflow."
        return replace(run, error=going_on(run) if run.alive else words)
    found = diagnosis.diagnose(
        connection,
        run.run_id,
        failed,
        seen.names.workflow,
        seen.spec,
        seen.platform,
        since=run.created,
    )
    return replace(run, error=found.short, diagnosis=found.text)


def _told(run: Run) -> Any:
    """What of a run is worth telling when it changes."""
    return run.status, [(step.label, step.status, step.attempts) for step in run.steps]
