"""The steps of a run, from the nodes that KFP lists without their place."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from harness.kfp_api import argo, pipelines
from harness.kfp_api.argo import Outcome, Workflow, node_id

from kfp_pytorch.client.nodes import Names, Node, container_tasks, status_of, steps, unfinished
from kfp_pytorch.client.packages import find

RECORDS = Path(__file__).resolve().parents[3] / "shared" / "records" / "kfp-api"
AT = datetime(2026, 11, 28, tzinfo=UTC)


def listed(workflow: Workflow) -> list[Node]:
    return [
        Node(
            node.display,
            status_of(node.state),
            frozenset(node_id(workflow.name, child.name) for child in node.children),
            AT,
            AT if node.ended else None,
        )
        for node in workflow.nodes.values()
    ]


def followed(pipeline, outcomes=None, *, retries_all=True, seen=None):
    """The steps of a run after each tick, as (label, status, attempts)."""
    spec = find.compile_pipeline("p", pipeline).spec
    workflow = Workflow("p-x1", spec, {}, outcomes or {}, retries_all=retries_all)
    tasks, names, told = list(container_tasks(spec)), Names(), []
    while workflow.state not in ("SUCCEEDED", "FAILED"):
        workflow.advance()
        found = steps(listed(workflow), names, tasks, AT)
        told.append([(step.label, step.status, step.attempts) for step in found])
    if seen is not None:
        seen += [workflow, names, found]
    return told


@pytest.mark.parametrize("retries_all", [True, False], ids=["2.17", "2.16"])
def test_a_step_is_pending_then_running_then_ended(retries_all):
    told = followed(pipelines.greeting, {"say-2": Outcome("FAILED")}, retries_all=retries_all)
    assert told == [
        [],
        [("say", "pending", 0)],
        [("say", "running", 1)],
        [("say", "succeeded", 1), ("say-2", "pending", 0)],
        [("say", "succeeded", 1), ("say-2", "running", 1)],
        [("say", "succeeded", 1), ("say-2", "failed", 1)],
    ]


@pytest.mark.parametrize("retries_all", [True, False], ids=["2.17", "2.16"])
def test_loops_conditions_and_pipelines_within_tell_their_steps_apart(retries_all):
    seen: list = []
    outcomes = {"for-loop-1": Outcome(items=3), "say-3": Outcome("FAILED")}
    told = followed(pipelines.looping, outcomes, retries_all=retries_all, seen=seen)
    workflow, names, found = seen
    assert not any(step.cached for step in found)
    assert all(step.pods and step.driver_pods for step in found)
    ids = {node_id(workflow.name, name): name for name in workflow.nodes}
    assert names.by_id == ids
    final = {label: status for label, status, _ in told[-1]}
    assert final == {
        "say": "succeeded",
        "inner/say": "succeeded",
        **{f"say-2[{number}]": "succeeded" for number in range(3)},
        **{f"say-3[{number}]": "failed" for number in range(3)},
    }
    # At no time is a step in a state that comes after a later one.
    order = ["pending", "running", "succeeded", "failed"]
    for label in final:
        states = [order.index(s) for frame in told for name, s, _ in frame if name == label]
        assert states == sorted(states), label


def test_a_cached_step_has_no_pod_and_a_skipped_one_has_no_time():
    seen: list = []
    followed(pipelines.greeting, {"say": Outcome(cached=True)}, seen=seen)
    assert [(step.label, step.status, step.cached) for step in seen[2]] == [
        ("say", "succeeded", True),
        ("say-2", "succeeded", False),
    ]
    followed(pipelines.greeting, {"say": Outcome("FAILED")}, seen=(seen := []))
    assert [(step.label, step.status) for step in seen[2]] == [
        ("say", "failed"),
        ("say-2", "skipped"),
    ]
    assert seen[2][1].seconds == 0


def test_the_attempts_of_a_step_are_counted_and_its_last_pod_is_the_last():
    seen: list = []
    told = followed(pipelines.retrying, {"say": Outcome(tries=3)}, seen=seen)
    counts = [frame[0][1:] for frame in told if frame]
    assert counts[:5] == [
        ("pending", 0),
        ("running", 1),
        ("running", 2),
        ("running", 3),
        ("succeeded", 3),
    ]
    workflow, _, found = seen
    last = workflow.nodes["p-x1(0).root(0).say(0).executor(2)"]
    assert found[0].pods[-1] == str(argo.fnv(last.name))


def test_a_failed_driver_fails_its_step():
    seen: list = []
    followed(pipelines.greeting, {"say": Outcome(driver="FAILED")}, seen=seen)
    first = seen[2][0]
    assert (first.label, first.status, first.pods, len(first.driver_pods)) == (
        "say",
        "failed",
        (),
        1,
    )


def test_what_has_not_ended_is_named_once():
    running = frozenset[str]()
    nodes = [Node("train", "running", running), Node("train(0)", "running", running)]
    assert unfinished([*nodes, Node("root", "succeeded", running)]) == ["train"]


@pytest.mark.skipif(not RECORDS.is_dir(), reason="the records are not here")
@pytest.mark.parametrize(
    ("record", "tasks", "expected"),
    [
        ("run", ["make", "use"], [("make", "succeeded"), ("use", "succeeded")]),
        ("run-failed", ["slow", "broken"], [("slow", "succeeded"), ("broken", "failed")]),
        ("run-terminated", ["slow", "broken"], [("slow", "failed"), ("broken", "skipped")]),
    ],
)
def test_runs_of_a_real_cluster_have_their_steps(record, tasks, expected):
    lines = gzip.decompress((RECORDS / f"{record}.jsonl.gz").read_bytes()).splitlines()
    bodies = [json.loads(line).get("body") or {} for line in lines]
    shown = [body for body in bodies if "run_details" in body and "runs" not in body]
    names, counts = Names(), []
    for body in shown:
        nodes = [
            Node(
                task["display_name"],
                status_of(task.get("state")),
                frozenset(child["pod_name"] for child in task.get("child_tasks", [])),
                datetime.fromisoformat(task["start_time"]),
                datetime.fromisoformat(task["end_time"]),
            )
            for task in body["run_details"]["task_details"]
            if "display_name" in task
        ]
        found = steps(nodes, names, tasks, AT)
        counts.append(len(found))
    assert [(step.label, step.status) for step in found] == expected
    assert counts == sorted(counts)
