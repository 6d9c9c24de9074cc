"""Random behaviour of operator, kubelet, network and people: what must hold whatever they do."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from harness.faults.actions import Answer, LostAnswer, Reset
from harness.faults.watches import (
    DuplicateEvents,
    EndWatch,
    ReorderEvents,
    SilentWatch,
    WithholdLast,
    expired_watch,
)
from harness.scripted import Record
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kfp_pytorch.launcher.constants import POD, PYTORCHJOB, STEP_ID_LABEL
from kfp_pytorch.launcher.errors import CannotObserve
from kfp_pytorch.local.apiserver.errors import ApiError

# A sequence that broke a rule is left here; REPLAY=FILE runs it again. Those worth keeping are in
# the folder, and always run.
BROKEN = Path(".hypothesis") / "broken-sequence.json"
KEPT = Path(__file__).with_name("sequences")
CONDITIONS = [
    [],
    ["Created"],
    ["Suspended"],
    ["Suspended=False"],
    ["Created", "Running"],
    ["Running=False", "Restarting", "Created"],
    ["Failed=False", "Succeeded=Unknown", "Running"],
    ["Running", "Suspended", "Created"],
    ["Running=False", "Running", "Nonsense"],
]
ENDS = [["Succeeded", "Running=False"], ["Failed"], ["Succeeded", "Failed"], ["deleted"], ["never"]]
DENIED = 'admission webhook "w.example" denied the request: no'
FAULTS: dict[str, tuple[Any, str, int]] = {
    "watch ends": (EndWatch(), "watch", 3),
    "watch cut": (EndWatch(cut=True), "watch", 2),
    "watch late": (WithholdLast(), "watch", 1),
    "watch twice": (DuplicateEvents(), "watch", 1),
    "watch mixed": (ReorderEvents(), "watch", 1),
    "watch expired": (expired_watch(), "watch", 2),
    "watch silent": (SilentWatch(), "watch", 2),
    "get redirected": (Answer(302, body="<html>"), "get", 1),
    "get unauthorized": (Answer(401), "get", 1),
    "list 500": (Answer(500), "list", 2),
    "create conflict": (Answer(409, "AlreadyExists", "it exists"), "create", 1),
    "create 504": (LostAnswer("timeout"), "create", 1),
    "get 503": (Answer(503), "get", 2),
    "get no kind": (Answer(404), "get", 1),
    "get reset": (Reset(), "get", 2),
    "get throttled": (Answer(429, retry_after=0), "get", 2),
    "delete 500": (Answer(500), "delete", 1),
    "delete no kind": (Answer(404), "delete", 1),
    "delete answered by another": (Answer(200, body="<html>"), "delete", 1),
    "create lost": (LostAnswer("reset"), "create", 1),
    "create denied": (Answer(409, message=DENIED), "create", 1),
    "create over quota": (Answer(403, message="exceeded quota: q"), "create", 2),
}
PODS = ["running", "crashed", "pulling", "gone", "done", "evicted", "unscheduled", "deleted"]
PEOPLE = ["suspend", "resume", "delete", "usurp", "retry"]
STEPS = st.one_of(
    st.tuples(st.just("conditions"), st.integers(0, len(CONDITIONS) - 1)),
    st.tuples(st.just("fault"), st.sampled_from(sorted(FAULTS))),
    st.tuples(st.just("pod"), st.sampled_from(PODS)),
    st.tuples(st.just("people"), st.sampled_from(PEOPLE)),
    st.tuples(st.just("wait"), st.sampled_from([0.01, 0.1])),
)
SEQUENCES = st.fixed_dictionaries(
    {
        "before": st.lists(st.sampled_from(sorted(FAULTS)), max_size=2),
        "steps": st.lists(STEPS, max_size=8),
        "end": st.integers(0, len(ENDS) - 1),
    }
)


class Play:
    """One sequence, as it is played."""

    def __init__(self, step: Any, hands: Any) -> None:
        self.hands = hands
        self.record = Record(hands.server.api)
        # What others made; nothing of it may ever change.
        self.of_others = {"stranger": hands.stranger()}
        self._step = step
        self.runs: list[Any] = []

    def start(self) -> Any:
        limits = {"run": 1.0, "start": 1.5, "queue": 1.0, "acknowledge": 1.0, "deletion": 2.0}
        self.runs.append(
            self._step(limits=limits | {"unavailability_budget": 5.0, "final_status": 1.0})
        )
        return self.runs[-1]

    def act(self, what: str, detail: Any, name: str) -> None:
        hands = self.hands
        try:
            if what == "fault":
                inject(hands, detail)
            elif what == "wait":
                time.sleep(detail)
            elif not self._ours(name):
                return
            elif what == "conditions":
                hands.set_conditions(name, *CONDITIONS[detail])
            elif what == "people":
                self._people(detail, name)
            else:
                _change_pod(detail, name, hands)
        except (ApiError, AssertionError):
            # The step has ended and deleted the job meanwhile.
            return

    def _ours(self, name: str) -> bool:
        job = self.hands.find(PYTORCHJOB, name)
        return job is not None and name not in self.of_others

    def _people(self, what: str, name: str) -> None:
        if what == "retry" and len(self.runs) < 2:
            self.start()
        elif what in ("suspend", "resume"):
            self.hands.suspend(name, what == "suspend")
        elif what == "delete":
            self.hands.delete(PYTORCHJOB, name)
        elif what == "usurp":
            self.of_others[name] = self.hands.server.call(_usurp, self.hands.server.api, name)

    def check(self) -> None:
        record, hands = self.record, self.hands
        assert record.most_alive <= 1, "two live jobs"
        for run in self.runs:
            assert run.error is not None or record.succeeded, "green without a success"
        for name, obj in self.of_others.items():
            assert hands.find(PYTORCHJOB, name) == obj, "another's job was touched"
        ends = [run.error for run in self.runs]
        if all(error is not None and not isinstance(error, CannotObserve) for error in ends):
            hands.until(lambda: not owned(hands))


def _usurp(api: Any, name: str) -> Any:
    """Puts another's job in the place of ours, in one turn of the server's loop."""
    job = api.get(PYTORCHJOB, "default", name)
    api.delete(PYTORCHJOB, "default", name)
    for field in ("uid", "resourceVersion", "creationTimestamp", "labels", "annotations"):
        job["metadata"].pop(field, None)
    job.pop("status", None)
    return api.create(PYTORCHJOB, job)


def _change_pod(how: str, name: str, hands: Any) -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    if how == "deleted":
        if hands.find(POD, f"{name}-master-0"):
            hands.delete(POD, f"{name}-master-0")
        return
    {
        "running": lambda: hands.running(name),
        "crashed": lambda: hands.ended(name, 1, "not json"),
        "pulling": lambda: hands.waiting(name, "ErrImagePull"),
        "gone": lambda: hands.pod(name, phase="Unknown"),
        "done": lambda: hands.ended(name, 0, "{}"),
        "evicted": lambda: hands.pod(name, phase="Failed", reason="Evicted"),
        "unscheduled": lambda: hands.pod(name, phase="Pending", conditions=[unscheduled]),
    }[how]()


def play(sequence: Any, step: Any, hands: Any) -> None:
    played = Play(step, hands)
    for name in sequence["before"]:
        inject(hands, name)
    first = played.start()
    try:
        hands.until(lambda: hands.find(PYTORCHJOB, first.job) or not first.going)
        for what, detail in sequence["steps"]:
            played.act(what, detail, first.job)
        if first.job not in played.of_others:
            finish(ENDS[sequence["end"]], first.job, hands)
        for run in played.runs:
            run.wait()
    finally:
        played.record.on = False
        hands.server.faults.clear()
    played.check()


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
    try:
        play(sequence, step, hands)
    except BaseException:
        BROKEN.parent.mkdir(exist_ok=True)
        BROKEN.write_text(json.dumps(sequence))
        raise


RELAXED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@given(sequence=SEQUENCES)
@settings(max_examples=12, suppress_health_check=RELAXED)
def test_no_sequence_breaks_a_rule(sequence: Any, step: Any, hands: Any) -> None:
    check(sequence, step, hands)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@given(sequence=SEQUENCES)
@settings(max_examples=1000, derandomize=False, suppress_health_check=RELAXED)
def test_no_sequence_of_a_thousand_breaks_a_rule(sequence: Any, step: Any, hands: Any) -> None:
    check(sequence, step, hands)


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.json")), ids=lambda path: path.stem)
def test_a_sequence_that_was_kept_breaks_no_rule(step: Any, hands: Any, path: Path) -> None:
    check(json.loads(path.read_text()), step, hands)


@pytest.mark.skipif("REPLAY" not in os.environ, reason="REPLAY=FILE names no sequence")
def test_a_broken_sequence_again(step: Any, hands: Any) -> None:
    check(json.loads(Path(os.environ["REPLAY"]).read_text()), step, hands)
