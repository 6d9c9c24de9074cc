"""The nodes of a run's Workflow, tick by tick, as Argo makes them of what KFP compiles.

A tick is one report of the Workflow to KFP's API server, about every ten seconds. The names, the
ids and the order are those of records of a real cluster: see `test_records.py`.
"""

from __future__ import annotations

import graphlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]
RUNNING, PENDING, SUCCEEDED, FAILED, OMITTED = "RUNNING", "PENDING", "SUCCEEDED", "FAILED", ""
ENDED = {SUCCEEDED, FAILED, OMITTED, "SKIPPED"}


@dataclass(frozen=True)
class Outcome:
    """How a step goes.

    Attributes:
        state: How it ends: `SUCCEEDED` or `FAILED`.
        ticks: How many ticks its program runs, besides the one in which its pod is pending.
        cached: Whether its result is taken from the cache: it gets no pod.
        driver: How its driver ends.
        log: What its program writes.
        items: How many iterations it has, where it is a loop.
        tries: With which attempt it succeeds; those before fail.
    """

    state: str = SUCCEEDED
    ticks: int = 0
    cached: bool = False
    driver: str = SUCCEEDED
    log: str = ""
    items: int = 2
    tries: int = 1


@dataclass
class Node:
    """A node of the Workflow.

    Attributes:
        name: Its whole name, such as `w-x2(0).root(0).train(0).executor(0)`.
        display: Its last part.
        state: As KFP says it; empty for a node that Argo leaves out.
        children: The nodes that follow from it.
        template: Of a pod, its template.
        log: Of a pod, what it writes.
        started: The tick in which it began.
        ended: The tick in which it ended; 0 while it has not.
        history: The states that it had, each with its tick.
    """

    name: str
    display: str
    state: str
    template: str = ""
    log: str = ""
    children: list[Node] = field(default_factory=list)
    started: int = 0
    ended: int = 0
    history: list[tuple[int, str]] = field(default_factory=list)

    def become(self, state: str, tick: int) -> None:
        """Takes a state."""
        if self.history and self.state == state:
            return
        self.state = state
        self.history.append((tick, state))
        self.ended = tick if state in ENDED else 0


def fnv(text: str) -> int:
    """FNV-1a of 32 bits, with which Argo makes a node's id of its name."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def node_id(workflow: str, name: str) -> str:
    return workflow if name == workflow else f"{workflow}-{fnv(name)}"


def pod_name(workflow: str, node: Node) -> str:
    return f"{workflow}-{node.template}-{fnv(node.name)}"


# Runs what has a name, under a parent: yields at the end of each tick until it has ended.
Script = Callable[[str, "Node | None"], Iterator[None]]
# The tasks of a DAG by name: those that each waits for, and its script or those of its attempts.
Tasks = dict[str, tuple[list[str], "Script | list[Script]"]]


class Workflow:
    """The Workflow of one run.

    Args:
        name: Its name.
        spec: The pipeline's specification.
        kubernetes: What `kfp.kubernetes` sets on steps, by their executors' labels.
        outcomes: How steps go, by the names of their tasks; others succeed at once.
        retries_all: Whether every template is retried, as KFP 2.17 configures Argo.
    """

    def __init__(
        self,
        name: str,
        spec: Object,
        kubernetes: Object | None = None,
        outcomes: dict[str, Outcome] | None = None,
        *,
        retries_all: bool = True,
    ) -> None:
        self.name = name
        self.nodes: dict[str, Node] = {}
        self.tick = 0
        self.terminating = False
        self._spec, self._kubernetes = spec, kubernetes or {}
        self.outcomes = outcomes or {}
        self._retries_all = retries_all
        self._runner: Iterator[None] | None = None

    @property
    def state(self) -> str:
        """The state of its first node; pending before there is one."""
        return self.nodes[self.name].state if self.nodes else PENDING

    def advance(self) -> None:
        """Goes on to the next tick."""
        if self._runner is None:
            self._runner = self._entry()
        self.tick += 1
        next(self._runner, None)

    def retry(self) -> None:
        """Begins anew at what failed, as KFP's retry does; what succeeded is kept."""
        self.terminating = False
        self._runner = self._entry()

    def _entry(self) -> Iterator[None]:
        yield from self._wrapped(self.name, self.name, self._entrypoint, None)

    def _entrypoint(self, name: str, parent: Node | None) -> Iterator[None]:
        node = self._node(name, name.rpartition(".")[2], RUNNING, parent)
        tasks: Tasks = {
            "root-driver": ([], self._pod("system-dag-driver", Outcome())),
            "root": (["root-driver"], self._dag(self._spec["root"])),
        }
        yield from self._tasks(node, tasks)

    def _dag(self, component: Object) -> Script:
        """What runs the tasks of a pipeline, a loop's iteration or a condition."""
        tasks: Tasks = {}
        for key, task in component["dag"]["tasks"].items():
            tasks |= self._of_task(key, task)

        def run(name: str, parent: Node | None) -> Iterator[None]:
            node = self._node(name, name.rpartition(".")[2], RUNNING, parent)
            yield from self._tasks(node, tasks)

        return run

    def _of_task(self, key: str, task: Object) -> Tasks:
        component = self._spec["components"][task["componentRef"]["name"]]
        after = list(task.get("dependentTasks", []))
        outcome = self.outcomes.get(key, Outcome())
        if task.keys() & {"parameterIterator", "artifactIterator"}:
            return {key: (after, self._loop(component, outcome))}
        if "dag" in component:
            driver = self._pod("system-dag-driver", Outcome(outcome.driver))
            return {
                f"{key}-driver": (after, driver),
                key: ([f"{key}-driver"], self._dag(component)),
            }
        driver = self._pod("system-container-driver", Outcome(outcome.driver))
        step = self._step(task, component["executorLabel"], outcome)
        return {f"{key}-driver": (after, driver), key: ([f"{key}-driver"], step)}

    def _loop(self, component: Object, outcome: Outcome) -> Script:
        item = {
            "iteration-item-driver": ([], self._pod("system-dag-driver", Outcome())),
            "iteration-item": (["iteration-item-driver"], self._dag(component)),
        }

        def iteration(name: str, parent: Node | None) -> Iterator[None]:
            node = self._node(name, name.rpartition(".")[2], RUNNING, parent)
            yield from self._tasks(node, item)

        def run(name: str, parent: Node | None) -> Iterator[None]:
            node = self._node(name, name.rpartition(".")[2], RUNNING, parent)
            tasks: Tasks = {"iteration-driver": ([], self._pod("system-dag-driver", Outcome()))}
            for number in range(outcome.items):
                tasks[f"iteration-iterations({number}:{number})"] = (
                    ["iteration-driver"],
                    iteration,
                )
            yield from self._tasks(node, tasks)

        return run

    def _step(self, task: Object, label: str, outcome: Outcome) -> Script:
        template = "system-container-impl"
        attempts = 1
        if "retryPolicy" in task:
            template = f"retry-{template}"
            attempts += int(task["retryPolicy"].get("maxRetryCount", 0))
        if metadata := self._kubernetes.get(label, {}).get("podMetadata"):
            counts = len(metadata.get("annotations", {})), len(metadata.get("labels", {}))
            template = f"metadata-{counts[0]}-{counts[1]}-{template}"
        pods = [
            Outcome(FAILED if number + 1 < outcome.tries else outcome.state, outcome.ticks)
            for number in range(
                min(attempts, outcome.tries if outcome.state != FAILED else attempts)
            )
        ]

        def run(name: str, parent: Node | None) -> Iterator[None]:
            node = self._node(name, name.rpartition(".")[2], RUNNING, parent)
            if outcome.cached:
                skipped = f"{name}.executor"
                self._node(skipped, "executor", "SKIPPED", node)
                node.become(SUCCEEDED, self.tick)
                return
            scripts = [self._pod(template, pod, outcome.log) for pod in pods]
            retried = self._retries_all or "retryPolicy" in task
            yield from self._tasks(node, {"executor": ([], scripts if retried else scripts[0])})

        return run

    def _pod(self, template: str, outcome: Outcome, log: str = "") -> Script:
        def run(name: str, parent: Node | None) -> Iterator[None]:
            node = self._node(name, name.rpartition(".")[2], PENDING, parent)
            node.template, node.log = template, log
            for _ in range(outcome.ticks):
                yield
                if self.terminating:
                    break
                node.become(RUNNING, self.tick)
            yield
            # A program is told to end in one report, and its step ends in the next.
            node.become(FAILED if self.terminating else outcome.state, self.tick)
            if self.terminating:
                yield

        return run

    def _wrapped(
        self, name: str, display: str, inner: Script | list[Script], parent: Node | None
    ) -> Iterator[None]:
        """Runs a template within its Retry node, where templates have one; `inner` may be many."""
        attempts = inner if isinstance(inner, list) else [inner]
        if not self._retries_all and not isinstance(inner, list):
            yield from attempts[0](name, parent)
            return
        node = self._node(name, display, RUNNING, parent)
        for number, attempt in enumerate(attempts):
            tried = f"{name}({number})"
            yield from attempt(tried, node)
            node.become(self.nodes[tried].state, self.tick)
            if node.state != FAILED or self.terminating:
                return
            if number + 1 < len(attempts):
                node.become(RUNNING, self.tick)

    def _tasks(self, node: Node, tasks: Tasks) -> Iterator[None]:
        """Runs the tasks of a DAG in their order, to the node's end."""
        running: dict[str, Iterator[None]] = {}
        order = list(
            graphlib.TopologicalSorter({k: d for k, (d, _) in tasks.items()}).static_order()
        )
        states: dict[str, str] = {}
        while len(states) < len(order):
            for key in list(running):
                if next(running[key], running) is running:
                    states[key] = self.nodes[f"{node.name}.{key}"].state
                    del running[key]
            for key in order:
                name, after = f"{node.name}.{key}", tasks[key][0]
                if key in states or key in running or not states.keys() >= set(after):
                    continue
                before = [self._outbound(f"{node.name}.{each}") for each in after]
                parent = before[-1] if before else node
                if name in self.nodes and self.nodes[name].state == SUCCEEDED:
                    states[key] = SUCCEEDED
                elif any(states[each] in (FAILED, OMITTED) for each in after):
                    states[key] = self._node(name, key, OMITTED, parent).state
                else:
                    running[key] = self._wrapped(name, key, tasks[key][1], parent)
                    if next(running[key], running) is running:
                        states[key] = self.nodes[name].state
                        del running[key]
            if len(states) < len(order):
                yield
        failed = any(state in (FAILED, OMITTED) for state in states.values())
        node.become(FAILED if failed else SUCCEEDED, self.tick)

    def _outbound(self, name: str) -> Node:
        """The node from which what depends on a task follows."""
        node = self.nodes[name]
        tried = [child for child in node.children if child.name.startswith(f"{name}(")]
        return tried[-1] if tried else node

    def _node(self, name: str, display: str, state: str, parent: Node | None) -> Node:
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = Node(name, display, state, started=self.tick)
        node.become(state, self.tick)
        if parent is not None and node not in parent.children:
            parent.children.append(node)
        return node
