"""The steps of a run, from the nodes of its Workflow that KFP lists.

KFP lists the nodes without their place: each with its last name, its state, and the ids of the
nodes that follow it. Argo makes a node's id of its whole name, so the names can be found again.
"""

from __future__ import annotations

import graphlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

PENDING, RUNNING, SUCCEEDED, FAILED, SKIPPED = (
    "pending",
    "running",
    "succeeded",
    "failed",
    "skipped",
)
_STATES = {
    "PENDING": PENDING,
    "RUNNING": RUNNING,
    "CANCELING": RUNNING,
    "PAUSED": RUNNING,
    "SUCCEEDED": SUCCEEDED,
    "FAILED": FAILED,
    "CANCELED": FAILED,
}
ENDED = (SUCCEEDED, FAILED, SKIPPED)
# What Argo adds to the name of a node that it retries, for each attempt.
_ATTEMPT = re.compile(r"\((\d+)\)$")
_ITERATION = re.compile(r"^iteration-iterations\((\d+):.*?\)(?:\(\d+\))?$")
_DRIVER, _EXECUTOR = "-driver", "executor"
# What does not say more about a step.
_WITHOUT_MEANING = ("root", "iteration-item")
_FNV_OFFSET, _FNV_PRIME = 0x811C9DC5, 0x01000193


@dataclass(frozen=True)
class Node:
    """A node of a run's Workflow, as KFP lists it.

    Attributes:
        display: The last part of its name.
        state: As this package calls it: `pending`, `running`, `succeeded`, `failed`, `skipped`.
        children: The ids of the nodes that follow.
        started: When it began.
        ended: When it ended; None while it has not.
    """

    display: str
    state: str
    children: frozenset[str]
    started: datetime | None = None
    ended: datetime | None = None


@dataclass(frozen=True)
class Step:
    """A step of a run.

    Attributes:
        name: The name of its task.
        label: The name, with what tells it from others of that name, such as `train[1]` in a loop.
        status: `pending`, `running`, `succeeded`, `failed` or `skipped`.
        seconds: How long it took, or has taken until now.
        cached: Whether KFP took its result from the cache.
        attempts: How many pods its program had.
        pods: The ends of the names of its pods, which tell them apart, the last attempt at the end.
        driver_pods: The same of its driver, which comes before its program.
    """

    name: str
    label: str
    status: str
    seconds: float = 0.0
    cached: bool = False
    attempts: int = 0
    pods: tuple[str, ...] = field(default=(), repr=False, compare=False)
    driver_pods: tuple[str, ...] = field(default=(), repr=False, compare=False)


@dataclass
class Names:
    """The whole names of a Workflow's nodes by id; what was found once is not looked for again."""

    workflow: str = ""
    by_id: dict[str, str] = field(default_factory=dict)

    def learn(self, nodes: Sequence[Node]) -> None:
        """Finds the names of the nodes that any node names as its child."""
        ids = {child for node in nodes for child in node.children}
        if not ids:
            return
        self.workflow = next(iter(ids)).rpartition("-")[0]
        self.by_id.setdefault(self.workflow, self.workflow)
        displays = {node.display for node in nodes}
        unseen = list(self.by_id.values())
        while unseen and not ids <= self.by_id.keys():
            name = unseen.pop()
            state = _fnv(name.encode())
            for ending in _endings(name, displays):
                child = f"{self.workflow}-{_fnv(ending.encode(), state)}"
                if child in ids and child not in self.by_id:
                    self.by_id[child] = name + ending
                    unseen.append(name + ending)


def steps(nodes: Sequence[Node], names: Names, tasks: Sequence[str], now: datetime) -> list[Step]:
    """Returns the steps that have begun or that will not run, in the order in which they began.

    `tasks`: the names of the pipeline's tasks that run a container, in their order.
    """
    names.learn(nodes)
    found = []
    for path, whole in _of_steps(names, tasks):
        node, driver = _node(nodes, names, whole), _node(nodes, names, whole + _DRIVER)
        began = node or driver
        if began is not None:
            found.append(
                (began.started or now, path, _step(nodes, path, node, driver, names, whole, now))
            )
    found.sort(key=lambda each: (each[0], tasks.index(each[1][-1])))
    labels = _labels([path for _, path, _ in found])
    return [
        Step(**{**vars(step), "label": label})
        for (_, _, step), label in zip(found, labels, strict=True)
    ]


def container_tasks(spec: Mapping[str, Any]) -> dict[str, list[str]]:
    """The tasks of a pipeline that run a container, by name, each with its executors' labels.

    A name may stand for several tasks: each pipeline, loop and condition has its own names. Those
    that need others come after them.
    """
    components = spec.get("components", {})
    found: dict[str, list[str]] = {}
    for group in (spec["root"], *components.values()):
        tasks = group.get("dag", {}).get("tasks", {})
        needs = {name: task.get("dependentTasks", []) for name, task in tasks.items()}
        for name in graphlib.TopologicalSorter(needs).static_order():
            label = components[tasks[name]["componentRef"]["name"]].get("executorLabel", "")
            if label:
                found.setdefault(name, []).append(label)
    return found


def unfinished(nodes: Sequence[Node]) -> list[str]:
    """The last names of the nodes that have not ended."""
    return sorted({_ATTEMPT.sub("", node.display) for node in nodes if node.state not in ENDED})


def status_of(state: str | None) -> str:
    """This package's word for a state of a node; of one that Argo left out, `skipped`."""
    return _STATES.get(state or "", SKIPPED)


def _fnv(text: bytes, state: int = _FNV_OFFSET) -> int:
    """FNV-1a of 32 bits: https://github.com/argoproj/argo-workflows/blob/main/workflow/util."""
    for byte in text:
        state = ((state ^ byte) * _FNV_PRIME) & 0xFFFFFFFF
    return state


def _endings(name: str, displays: set[str]) -> Iterator[str]:
    """What may follow a name in the names of its children."""
    last = name.rpartition(".")[2]
    for display in displays:
        if display.startswith(f"{last}(") and _ATTEMPT.fullmatch(display[len(last) :]):
            yield display[len(last) :]
    if not _ATTEMPT.sub("", last).endswith((_DRIVER, _EXECUTOR)):
        for display in displays:
            yield f".{display}"


def _of_steps(names: Names, tasks: Sequence[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The paths and whole names of the nodes that are steps, or their drivers."""
    seen = set()
    for name in names.by_id.values():
        parent, _, last = name.rpartition(".")
        task = last.removesuffix(_DRIVER)
        whole = f"{parent}.{task}"
        if parent and task in tasks and whole not in seen:
            seen.add(whole)
            yield (*_path(parent.removeprefix(names.workflow)), task), whole


def _path(parents: str) -> Iterator[str]:
    for part in parents.split("."):
        iteration = _ITERATION.match(part)
        name = _ATTEMPT.sub("", part)
        if iteration:
            yield f"[{iteration[1]}]"
        elif name and name not in _WITHOUT_MEANING:
            yield name


def _node(nodes: Sequence[Node], names: Names, whole: str) -> Node | None:
    """The node of a whole name: of those with its last name the one that has its children."""
    if whole not in names.by_id.values():
        return None
    last = whole.rpartition(".")[2]
    leaves = []
    for node in nodes:
        if node.display == last:
            children = [names.by_id.get(child, "") for child in node.children]
            if any(child.startswith((f"{whole}(", f"{whole}.")) for child in children):
                return node
            if not any(f".{last}" in child for child in children):
                leaves.append(node)
    return leaves[0] if len(leaves) == 1 else None


def _step(
    nodes: Sequence[Node],
    path: tuple[str, ...],
    node: Node | None,
    driver: Node | None,
    names: Names,
    whole: str,
    now: datetime,
) -> Step:
    pods = _pods(names, re.compile(rf"{re.escape(whole)}(?:\(\d+\))?\.{_EXECUTOR}"))
    if f"{whole}.{_EXECUTOR}" in names.by_id.values():
        # Nothing is retried, and one that was not needed has a node, too.
        executor = _node(nodes, names, f"{whole}.{_EXECUTOR}")
        pods = () if executor and executor.state == SKIPPED else pods
    drivers = _pods(names, re.compile(re.escape(whole + _DRIVER)))
    status = node.state if node else (FAILED if driver and driver.state == FAILED else PENDING)
    begun = node or driver
    started = begun.started if begun else None
    ended = begun.ended if begun and status in ENDED else now
    took = (ended - started).total_seconds() if started and ended else 0.0
    return Step(
        name=path[-1],
        label="",
        status=status,
        seconds=max(0.0, took) if status != SKIPPED else 0.0,
        cached=status == SUCCEEDED and not pods,
        attempts=len(pods),
        pods=pods,
        driver_pods=drivers,
    )


def _pods(names: Names, pattern: re.Pattern[str]) -> tuple[str, ...]:
    """The ends of the ids of the pods that are attempts of a node, or that node itself."""
    found = {name: key for key, name in names.by_id.items() if pattern.match(name)}
    attempts = [name for name in found if _is_attempt(pattern, name)]
    # Where a node is retried, so is its parent.
    alone = [
        name
        for name in found
        if pattern.fullmatch(name) and not _ATTEMPT.search(name.rpartition(".")[0])
    ]
    ordered = sorted(attempts or alone, key=_attempts_in)
    return tuple(found[name].rpartition("-")[2] for name in ordered)


def _attempts_in(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\((\d+)\)", name)]


def _is_attempt(pattern: re.Pattern[str], name: str) -> bool:
    return (
        pattern.fullmatch(_ATTEMPT.sub("", name)) is not None and _ATTEMPT.search(name) is not None
    )


def _labels(paths: Sequence[tuple[str, ...]]) -> list[str]:
    """The name of each step, with its iterations; with its whole path where that is not enough."""
    iterations = ["".join(part for part in path if part.startswith("[")) for path in paths]
    short = [path[-1] + number for path, number in zip(paths, iterations, strict=True)]
    times = Counter(short)
    return [
        label if times[label] == 1 else "/".join(path).replace("/[", "[")
        for label, path in zip(short, paths, strict=True)
    ]
