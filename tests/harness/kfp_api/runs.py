"""A run as KFP's API server shows it, from the nodes of its Workflow."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from harness.kfp_api.argo import (
    ENDED,
    FAILED,
    PENDING,
    RUNNING,
    SUCCEEDED,
    Node,
    Outcome,
    Workflow,
    node_id,
    pod_name,
)
from harness.kfp_api.errors import ABORTED, INTERNAL, INVALID, ApiError

Object = dict[str, Any]
NEVER, UNSET = "1970-01-01T00:00:00Z", "0001-01-01T00:00:00Z"


def stamp(time: datetime) -> str:
    """A time as KFP writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


class Run:
    """One run.

    Attributes:
        key: Its id.
        recurring: The id of the recurring run that made it; empty when a person did.
        archived: Whether it is archived.
    """

    def __init__(
        self,
        workflow: str,
        body: Object,
        now: str,
        package: tuple[Object, Object],
        outcomes: dict[str, Outcome],
        *,
        retries_all: bool,
        recurring: str = "",
    ) -> None:
        self.key = str(uuid.uuid4())
        self.recurring, self.archived = recurring, False
        spec, platform = package
        kubernetes = platform.get("platforms", {}).get("kubernetes", {}).get("deploymentSpec", {})
        executors = kubernetes.get("executors", {})
        self.workflow = Workflow(workflow, spec, executors, outcomes, retries_all=retries_all)
        self._body, self._created = body, now
        self._state, self._finished = PENDING, NEVER
        self._history = [(now, PENDING)]
        self._times = {0: now}
        self._ids: dict[str, str] = {}
        self._lost = self._overflown = False

    @property
    def state(self) -> str:
        """Its state as KFP says it."""
        return self._state

    def advance(self, now: str) -> None:
        """Takes the next report of its Workflow."""
        if self._lost or self._overflown or self._state in (SUCCEEDED, FAILED):
            return
        self.workflow.advance()
        self._times[self.workflow.tick] = now
        state = self.workflow.state
        if self._state == "CANCELING" and state == RUNNING:
            state = "CANCELING"
        self._become(state, now)

    def _become(self, state: str, now: str) -> None:
        self._state = state
        if self._history[-1][1] != state:
            self._history.append((now, state))
        self._finished = now if state in (SUCCEEDED, FAILED) else NEVER

    def overflow(self, now: str) -> None:
        """Its Workflow grows too large: Argo gives it up, and its pods and jobs run on."""
        self._overflown = True
        self._become(FAILED, now)

    def lose_workflow(self) -> None:
        """Its Workflow is deleted: KFP goes on to show what it saw last."""
        self._lost = True

    def terminate(self) -> None:
        """Ends it; refused once it has ended."""
        if self._state in (SUCCEEDED, FAILED):
            words = f"Failed to terminate a run {self.key}. Row not found"
            failed = f"Failed to terminate a run: Failed to terminate run {self.key}"
            raise ApiError(INVALID, f"{failed}: Invalid input error: {words}", words)
        self._state = "CANCELING"
        self.workflow.terminating = True

    def retry(self, now: str) -> None:
        """Begins anew at what failed; refused unless its Workflow has failed."""
        failed = f"Failed to retry a run: Failed to retry run {self.key}"
        if self._state != FAILED:
            words = "Workflow must be Failed/Error to retry"
            message = f"{failed}: BadRequestError: {words}: workflow cannot be retried"
            raise ApiError(ABORTED, message, words)
        if self._overflown:
            alive = next(n for n in self.workflow.nodes.values() if n.state not in ENDED)
            name = node_id(self.workflow.name, alive.name)
            words = f"Workflow cannot be retried with node {name} in Running phase"
            raise ApiError(
                INTERNAL, f"{failed}: InternalServerError: {words}", "Internal Server Error"
            )
        self.workflow.retry()
        self._become(RUNNING, now)

    def log(self, pod: str) -> str | None:
        """What a pod has written; None where there is no such pod."""
        for node in self.workflow.nodes.values():
            if node.template and pod_name(self.workflow.name, node) == pod and not self._lost:
                return node.log
        return None

    def answer(self) -> Object:
        """It as the API gives it."""
        told = {name: self._body[name] for name in _TOLD if self._body.get(name)}
        answer = {
            **told,
            "run_id": self.key,
            "storage_state": "ARCHIVED" if self.archived else "AVAILABLE",
            "created_at": self._created,
            "scheduled_at": self._created,
            "finished_at": self._finished,
            "state": self._state,
            "state_history": [{"update_time": at, "state": state} for at, state in self._history],
        }
        if self.recurring:
            answer["recurring_run_id"] = self.recurring
        config = self._body.get("runtime_config", {})
        config = {name: value for name, value in config.items() if value}
        if config:
            answer["runtime_config"] = config
        tasks = [self._task(node) for node in self.workflow.nodes.values()]
        tasks += [self._cached(node) for node in self.workflow.nodes.values() if _ran(node)]
        if tasks:
            tasks.sort(key=lambda task: str(task["task_id"]))
            answer["run_details"] = {"task_details": tasks}
        return answer

    def _id(self, name: str) -> str:
        return self._ids.setdefault(name, str(uuid.uuid4()))

    def _task(self, node: Node) -> Object:
        task = {
            "run_id": self.key,
            "task_id": self._id(node.name),
            "display_name": node.display,
            "create_time": self._created,
            "start_time": self._times[node.started],
            "end_time": self._times[node.ended] if node.ended else UNSET,
            "state_history": [
                {"update_time": self._times[tick], **({"state": state} if state else {})}
                for tick, state in node.history
            ],
        }
        if node.state:
            task["state"] = node.state
        if node.children:
            names = [node_id(self.workflow.name, child.name) for child in node.children]
            task["child_tasks"] = [{"pod_name": name} for name in names]
        return task

    def _cached(self, node: Node) -> Object:
        """What KFP's launcher records of a step that succeeded, for the cache."""
        at = self._times[node.ended]
        return {
            "run_id": self.key,
            "task_id": self._id(f"{node.name} in the cache"),
            "create_time": at,
            "start_time": at,
            "end_time": at,
            "execution_id": "97",
        }


_TOLD = (
    "experiment_id",
    "display_name",
    "description",
    "pipeline_version_reference",
    "pipeline_spec",
    "service_account",
)


def _ran(node: Node) -> bool:
    return node.template.endswith("container-impl") and node.state == SUCCEEDED
