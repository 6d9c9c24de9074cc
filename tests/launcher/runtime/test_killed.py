"""kill -9 of the launcher at every request that it makes: the next try comes to the same end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from harness.faults.actions import LostAnswer, Stall
from harness.forked import Ended, Forker, Process
from harness.scripted import Operator, Record

from kfp_pytorch.launcher.constants import PYTORCHJOB

# Every request that a try makes is among the first so many; a test counts them. On a busy
# machine a watch ends and begins again more often: 21 were seen where an idle one makes 16.
MOST_REQUESTS = 26
# Before the server has done anything, and when it has done all that was asked.
MOMENTS = {"before": Stall(), "after": LostAnswer()}


@dataclass(frozen=True)
class Story:
    """What a try meets that is killed.

    Attributes:
        before: What earlier tries left, each as their job's state: `running` or `Failed`.
        ends: How the jobs end from then on.
        inputs: The step's inputs.
        most_jobs: How many jobs may be made over all tries.
        left: How many jobs there are at the end.
    """

    before: str = ""
    ends: tuple[str, ...] = ()
    inputs: dict[str, Any] = field(default_factory=dict)
    most_jobs: int = 1
    left: int = 1


STORIES = {
    "create": Story(),
    "adopt": Story(before="running"),
    "replace": Story(before="Failed", ends=("Failed",), most_jobs=2),
    # A job that failed, or was deleted after its success, is made anew: from its checkpoint.
    "explain a failure and delete": Story(ends=("Failed",) * 2, most_jobs=2, left=0),
    "delete after success": Story(inputs={"cleanup": "always"}, most_jobs=2, left=0),
}


class Theatre:
    """A server, an operator, and steps one after the other."""

    def __init__(self, hands: Any, forker: Forker, folder: Path) -> None:
        self.hands = hands
        self.server = hands.server
        self.record = Record(self.server.api)
        self._forker, self._folder, self._number = forker, folder, 0
        self._held = False
        self._playing: Any = None

    def operate(self, story: Story) -> None:
        operator = Operator(self.server.api, "default", story.ends, self._ready)
        self._playing = self.server.run(operator.run())

    def _ready(self, name: str) -> bool:
        """A job ends when its launcher follows it: by then it has made every kind of request."""
        return not self._held and self.hands.count("get", f"{name}-master-0/log") > 0

    def hold(self, *, held: bool) -> None:
        self._held = held

    def start(self, **inputs: Any) -> Process:
        self._number += 1
        return self._forker.start(self._folder / str(self._number), **inputs)

    def prepare(self, story: Story) -> None:
        """Leaves what an earlier attempt left that was killed in mid-wait."""
        if not story.before:
            return
        self.hold(held=story.before == "running")
        first = self.start(**story.inputs)
        self.hands.until(lambda: self.hands.count("get", "/log"))
        if story.before == "Failed":
            self.server.faults.clear()
            self.hands.fault(Stall(), "delete", times=None)
            self.hands.until(lambda: self.server.faults.struck())
        first.kill()
        self.server.faults.clear()
        self.server.call(self.server.faults.requests.clear)

    def close(self) -> None:
        self.record.on = False
        if self._playing is not None:
            self._playing.cancel()


@pytest.fixture
def theatre(hands: Any, forker: Forker, tmp_path: Path) -> Iterator[Theatre]:
    made = Theatre(hands, forker, tmp_path)
    yield made
    made.close()


def kill_at(theatre: Theatre, story: Story, moment: str, number: int) -> Ended:
    """Kills a try at its nth request, and lets the next one come to its end."""
    theatre.operate(story)
    theatre.prepare(story)
    theatre.hands.fault(MOMENTS[moment], "", "*", skip=number)
    theatre.hold(held=False)
    first = theatre.start(**story.inputs)
    faults = theatre.server.faults
    theatre.hands.until(lambda: faults.struck() or not first.going())
    if moment == "after":
        # The server is at work on it: not on this thread, so let it.
        time.sleep(0.02)
    first.kill()
    faults.clear()
    theatre.server.call(faults.requests.clear)
    return theatre.start(**story.inputs).wait()


def check(theatre: Theatre, story: Story, ended: Ended) -> None:
    fails = len(story.ends) == story.most_jobs
    assert ended.code == int(fails), ended.log
    if fails:
        assert "ValueError: bad" in ended.log
    else:
        assert ended.result["metrics"] == {"accuracy": 0.75}
    record = theatre.record
    assert record.most_alive == 1, "two live jobs at once"
    assert len(record.made) <= story.most_jobs
    theatre.hands.until(lambda: len(theatre.hands.jobs()) == story.left)
    jobs = theatre.hands.jobs()
    assert {job["metadata"]["uid"] for job in jobs} <= record.succeeded


def tried(which: Callable[[str, int], bool]) -> list[Any]:
    return [
        pytest.param(story, moment, number, id=f"{story}-{moment}-{number}")
        for story in STORIES
        for moment in MOMENTS
        for number in range(MOST_REQUESTS)
        if which(moment, number)
    ]


@pytest.mark.parametrize(
    ("story", "moment", "number"),
    tried(lambda moment, n: (n, moment) in [(2, "after"), (4, "before")]),
)
def test_a_launcher_killed_at_one_of_its_requests_changes_no_outcome(
    theatre: Theatre, story: str, moment: str, number: int
) -> None:
    check(theatre, STORIES[story], kill_at(theatre, STORIES[story], moment, number))


@pytest.mark.slow
@pytest.mark.parametrize(("story", "moment", "number"), tried(lambda _moment, _n: True))
def test_a_launcher_killed_at_any_of_its_requests_changes_no_outcome(
    theatre: Theatre, story: str, moment: str, number: int
) -> None:
    check(theatre, STORIES[story], kill_at(theatre, STORIES[story], moment, number))


@pytest.mark.parametrize("story", STORIES)
def test_no_request_is_left_out(theatre: Theatre, story: str) -> None:
    theatre.operate(STORIES[story])
    theatre.prepare(STORIES[story])
    theatre.hold(held=False)
    ended = theatre.start(**STORIES[story].inputs).wait()
    asked = [f"{r.verb} {r.path}" for r in theatre.server.requests]
    assert 0 < len(asked) <= MOST_REQUESTS, asked
    assert ended.code == int(story == "explain a failure and delete"), ended.log
    kinds = {verb for verb, path in (words.split() for words in asked) if PYTORCHJOB.plural in path}
    assert {"create", "watch"} <= kinds
