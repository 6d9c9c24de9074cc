"""Random behaviour of operator, kubelet, network and people: what must hold whatever they do."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kfp_pytorch.launcher.constants import PYTORCHJOB, STEP_ID_LABEL
from kfp_pytorch.launcher.errors import CannotObserve
from kfp_pytorch.local.apiserver.errors import ApiError
from kfp_pytorch.local.apiserver.faultactions import Answer, LostAnswer, Reset
from kfp_pytorch.local.apiserver.watchfaults import (
    DuplicateEvents,
    EndWatch,
    ReorderEvents,
    WithholdLast,
    expired_watch,
)

# A sequence that broke a rule is left here; REPLAY=FILE runs it again.
BROKEN = Path(".hypothesis") / "broken-sequence.json"
CONDITIONS = [
    [],
    ["Created"],
    ["Suspended"],
    ["Suspended=False"],
    ["Created", "Running"],
    ["Running=False", "Restarting", "Created"],
    ["Failed=False", "Succeeded=Unknown", "Running"],
]
ENDS = [["Succeeded", "Running=False"], ["Failed"], ["Succeeded", "Failed"], ["deleted"], ["never"]]
FAULTS: dict[str, tuple[Any, str, int]] = {
    "watch ends": (EndWatch(), "watch", 3),
    "watch cut": (EndWatch(cut=True), "watch", 2),
    "watch late": (WithholdLast(), "watch", 1),
    "watch twice": (DuplicateEvents(), "watch", 1),
    "watch mixed": (ReorderEvents(), "watch", 1),
    "watch expired": (expired_watch(), "watch", 2),
    "get 503": (Answer(503), "get", 2),
    "get no kind": (Answer(404), "get", 1),
    "get reset": (Reset(), "get", 2),
    "get throttled": (Answer(429, retry_after=0), "get", 2),
    "delete 500": (Answer(500), "delete", 1),
    "delete no kind": (Answer(404), "delete", 1),
    "create lost": (LostAnswer("reset"), "create", 1),
}
PODS = ["running", "crashed", "pulling", "gone", "done"]
STEPS = st.one_of(
    st.tuples(st.just("conditions"), st.integers(0, len(CONDITIONS) - 1)),
    st.tuples(st.just("fault"), st.sampled_from(sorted(FAULTS))),
    st.tuples(st.just("pod"), st.sampled_from(PODS)),
    st.tuples(st.just("wait"), st.sampled_from([0.01, 0.1])),
)
SEQUENCES = st.fixed_dictionaries(
    {
        "before": st.lists(st.sampled_from(sorted(FAULTS)), max_size=2),
        "steps": st.lists(STEPS, max_size=8),
        "end": st.integers(0, len(ENDS) - 1),
    }
)


class Record:
    """Every state that each job ever had, as the server wrote it."""

    def __init__(self, hands: Any) -> None:
        self.succeeded: set[str] = set()
        self.alive: set[str] = set()
        self.most_alive = 0
        self.on = True
        hands.server.call(hands.server.api.on_change, self.see)

    def see(self, kind: Any, change: Any) -> None:
        if not self.on or kind != PYTORCHJOB:
            return
        metadata = change.object["metadata"]
        if STEP_ID_LABEL not in (metadata.get("labels") or {}):
            return
        conditions = (change.object.get("status") or {}).get("conditions") or []
        true = {c["type"] for c in conditions if c["status"] == "True"}
        if "Succeeded" in true and "Failed" not in true:
            self.succeeded.add(metadata["uid"])
        over = change.type == "DELETED" or true & {"Succeeded", "Failed"}
        (self.alive.discard if over else self.alive.add)(metadata["uid"])
        self.most_alive = max(self.most_alive, len(self.alive))


def play(sequence: Any, step: Any, hands: Any) -> None:
    record = Record(hands)
    for name in sequence["before"]:
        inject(hands, name)
    run = step(limits={"run": 1.0, "start": 1.5, "queue": 1.0, "acknowledge": 1.0})
    try:
        job = hands.job(run.job)
        for what, detail in sequence["steps"]:
            act(what, detail, run.job, hands)
        finish(ENDS[sequence["end"]], run.job, hands)
        run.wait(12.0)
    finally:
        record.on = False
        hands.server.faults.clear()
    uid = job["metadata"]["uid"]
    assert record.most_alive <= 1, "two live jobs"
    if run.error is None:
        assert uid in record.succeeded, "green without a success"
    elif not isinstance(run.error, CannotObserve):
        hands.until(lambda: not owned(hands), within=3.0)


def act(what: str, detail: Any, name: str, hands: Any) -> None:
    try:
        if what == "conditions":
            hands.set_conditions(name, *CONDITIONS[detail])
        elif what == "fault":
            inject(hands, detail)
        elif what == "wait":
            time.sleep(detail)
        elif hands.find(PYTORCHJOB, name):
            {
                "running": lambda: hands.running(name),
                "crashed": lambda: hands.ended(name, 1, "not json"),
                "pulling": lambda: hands.waiting(name, "ErrImagePull"),
                "gone": lambda: hands.pod(name, phase="Unknown"),
                "done": lambda: hands.ended(name, 0, "{}"),
            }[detail]()
    except (ApiError, AssertionError):
        # The step has ended and deleted the job meanwhile.
        return


def inject(hands: Any, name: str) -> None:
    action, verb, times = FAULTS[name]
    hands.fault(action, verb, times=times)


def finish(end: list[str], name: str, hands: Any) -> None:
    if end == ["never"] or not hands.find(PYTORCHJOB, name):
        return
    try:
        if end == ["deleted"]:
            hands.delete(PYTORCHJOB, name)
        else:
            hands.server.call(_write, hands, name, end)
    except ApiError:
        return


def _write(hands: Any, name: str, end: list[str]) -> None:
    def change(obj: Any) -> None:
        written = [
            {"type": text.partition("=")[0], "status": text.partition("=")[2] or "True"}
            for text in end
        ]
        obj["status"] = {"conditions": written}

    hands.server.api.mutate(PYTORCHJOB, "default", name, change, "status")


def owned(hands: Any) -> list[Any]:
    return [job for job in hands.jobs() if STEP_ID_LABEL in (job["metadata"].get("labels") or {})]


def check(sequence: Any, step: Any, hands: Any) -> None:
    hands.reset()
    stranger = hands.stranger()
    try:
        play(sequence, step, hands)
        assert hands.find(PYTORCHJOB, "stranger") == stranger, "another's job was touched"
    except BaseException:
        BROKEN.parent.mkdir(exist_ok=True)
        BROKEN.write_text(json.dumps(sequence))
        raise


RELAXED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@given(sequence=SEQUENCES)
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=RELAXED,
    database=None,
    derandomize=True,
)
def test_no_sequence_breaks_a_rule(sequence: Any, step: Any, hands: Any) -> None:
    check(sequence, step, hands)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@given(sequence=SEQUENCES)
@settings(max_examples=1000, deadline=None, suppress_health_check=RELAXED)
def test_no_sequence_of_a_thousand_breaks_a_rule(sequence: Any, step: Any, hands: Any) -> None:
    check(sequence, step, hands)


@pytest.mark.skipif("REPLAY" not in os.environ, reason="REPLAY=FILE names no sequence")
def test_a_broken_sequence_again(step: Any, hands: Any) -> None:
    check(json.loads(Path(os.environ["REPLAY"]).read_text()), step, hands)
