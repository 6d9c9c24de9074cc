"""The first node's log in the step's own."""

from __future__ import annotations

import time
from typing import Any

import pytest
from harness.faults.actions import Answer, EndsAfter, Reset
from harness.objects import played

from kfp_pytorch.launcher.constants import POD
from kfp_pytorch.launcher.errors import JobFailed
from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.waiting.gather import Gatherer
from kfp_pytorch.launcher.waiting.limits import Limits

Shown = Any


def lines(*numbers: int) -> list[str]:
    return [f"2025-11-27T12:00:{n:02}.5Z line {n}" for n in numbers]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Shown:
    """`shown()`: the lines of the log that were shown until now."""
    text = ""

    def read() -> list[str]:
        nonlocal text
        text += capsys.readouterr().out
        return [line.partition(" | ")[2] for line in text.splitlines() if " | " in line]

    return read


def start(step: Any, hands: Any, **limits: float) -> Any:
    run = step(limits=limits)
    hands.set_conditions(run.job, "Created", "Running")
    return run


def test_it_is_shown_as_it_comes_and_to_its_end(step: Any, hands: Any, shown: Shown) -> None:
    run = start(step, hands)
    pod = hands.running(run.job)
    hands.log(pod, lines(1, 2))
    hands.until(lambda: shown() == ["line 1", "line 2"])
    hands.log(pod, lines(3))
    hands.until(lambda: shown()[-1] == "line 3")
    hands.log(pod, lines(4))
    hands.success(run.job)
    run.succeeded()
    assert shown() == ["line 1", "line 2", "line 3", "line 4"]


def test_a_silent_stream_is_opened_anew_and_no_line_comes_twice(
    step: Any, hands: Any, shown: Shown
) -> None:
    run = start(step, hands, log_idle=0.3)
    pod = hands.running(run.job)
    hands.log(pod, lines(1, 2))
    hands.until(lambda: hands.count("get", "/log") >= 3)
    hands.log(pod, lines(3))
    hands.until(lambda: "line 3" in shown())
    hands.success(run.job)
    run.succeeded()
    assert shown() == ["line 1", "line 2", "line 3"]


def test_a_broken_stream_is_resumed_where_it_broke(step: Any, hands: Any, shown: Shown) -> None:
    hands.fault(Reset(after_bytes=50), "get", "*/log")
    run = start(step, hands)
    hands.log(hands.running(run.job), lines(*range(1, 9)))
    hands.until(lambda: shown()[-1:] == ["line 8"])
    hands.success(run.job)
    run.succeeded()
    assert shown() == [f"line {n}" for n in range(1, 9)]


def test_a_container_that_was_restarted_goes_on_with_its_new_log(
    step: Any, hands: Any, shown: Shown
) -> None:
    run = start(step, hands)
    pod = hands.running(run.job)
    hands.log(pod, lines(1))
    hands.until(lambda: shown() == ["line 1"])
    hands.log(pod, lines(2))
    crash = {"terminated": {"exitCode": 1, "finishedAt": "2025-11-27T12:01:00Z"}}
    hands.waiting(run.job, "CrashLoopBackOff", restarts=1, lastState=crash)
    hands.log(pod, ["2025-11-27T11:00:00Z a clock that went back"], number=1)
    hands.pod(
        run.job,
        phase="Running",
        containerStatuses=[
            {
                "name": "pytorch",
                "image": "train:1",
                "imageID": "",
                "ready": True,
                "restartCount": 1,
                "state": {"running": {"startedAt": "2025-11-27T12:01:01Z"}},
                "lastState": crash,
            }
        ],
    )
    hands.until(lambda: "a clock that went back" in shown())
    hands.success(run.job, restarts=1)
    run.succeeded()
    assert shown() == ["line 1", "line 2", "a clock that went back"]


def test_a_pod_that_was_made_anew_goes_on_with_its_own_log(
    step: Any, hands: Any, shown: Shown
) -> None:
    run = start(step, hands)
    hands.log(hands.running(run.job), lines(1))
    hands.until(lambda: shown() == ["line 1"])
    hands.delete(POD, f"{run.job}-master-0")
    hands.log(hands.running(run.job), lines(2))
    hands.until(lambda: shown() == ["line 1", "line 2"])
    hands.success(run.job)
    run.succeeded()


@pytest.mark.parametrize("streamed", [True, False])
def test_a_log_that_went_with_its_pod_is_missed_only_where_it_was_not_streamed(
    step: Any, hands: Any, shown: Shown, streamed: bool
) -> None:
    run = start(step, hands)
    if streamed:
        hands.log(hands.running(run.job), lines(1))
        hands.until(lambda: shown() == ["line 1"])
    hands.fault(Answer(404), "get", "*/log", times=None)
    hands.ended(run.job, 1)
    hands.set_conditions(run.job, "Created", "Running=False", "Failed")
    message = run.failed(JobFailed)
    assert ("line 1" in message) is streamed
    assert ("can no longer be read here" in message) is not streamed


def test_a_log_that_was_streamed_is_not_missed_though_its_crash_is_seen_later(
    hands: Any, kube: Any
) -> None:
    job = hands.stranger()
    gatherer = Gatherer(kube, PYTORCH_JOB, job, Limits())
    spec = {"nodeName": "node-1", "containers": [{"name": "pytorch", "image": "a"}]}
    made = played.pod(job, "master", 0, spec)
    gatherer.record_pods([made])
    gatherer.record_streamed("line 1")
    hands.fault(Answer(404), "get", "*/log", times=None)
    made["status"] = {
        "phase": "Failed",
        "containerStatuses": [played.container(terminated=played.end(1))],
    }
    gatherer.read_logs(gatherer.record_pods([made]))
    assert gatherer.evidence.logs == {"stranger-master-0": "line 1"}
    assert gatherer.evidence.notes == []


ODD = "10%\r 20%\f page\x85 next\u2028 end"


def test_lines_end_at_line_feeds_alone_and_none_is_repeated_after_a_restart(
    step: Any, hands: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    text = ""

    def seen(words: str) -> bool:
        nonlocal text
        text += capfd.readouterr().out
        return words in text

    run = start(step, hands)
    pod = hands.running(run.job)
    hands.log(pod, [f"2025-11-27T12:00:01.5Z {ODD}"])
    hands.until(lambda: seen(ODD))
    hands.log(pod, [f"2025-11-27T12:00:02.5Z second {ODD}"])
    crash = {"terminated": {"exitCode": 1, "finishedAt": "2025-11-27T12:01:00Z"}}
    hands.waiting(run.job, "CrashLoopBackOff", restarts=1, lastState=crash)
    hands.log(pod, ["2025-11-27T12:01:01.5Z again"], number=1)
    hands.running(run.job, restarts=1)
    hands.until(lambda: seen("master-0 | again"))
    hands.success(run.job, restarts=1)
    run.succeeded()
    seen("")
    assert [line for line in text.split("\n") if " | " in line] == [
        f"master-0 | {ODD}",
        f"master-0 | second {ODD}",
        "master-0 | again",
    ]


def test_what_is_left_out_of_a_very_long_line_is_marked(
    step: Any, hands: Any, shown: Shown
) -> None:
    run = start(step, hands)
    pod = hands.running(run.job)
    hands.log(pod, [f"2025-11-27T12:00:01.5Z {'x' * 2_000_000}", *lines(2)])
    hands.until(lambda: "line 2" in shown())
    hands.success(run.job)
    run.succeeded()
    long, last = shown()
    kept = long.partition(" … ")[0]
    left_out = f"{2_000_000 - len(kept):,} bytes left out"
    assert long == f"{kept} … ({left_out})"
    assert len(kept) > 60_000
    assert last == "line 2"


STAMP = "2025-11-27T12:00:01.500000000Z "


@pytest.mark.parametrize(
    ("sent", "first"),
    [
        (STAMP[:20], []),
        (STAMP[:25], []),
        (STAMP[:-1], []),
        (STAMP, []),
        (f"{STAMP}ab", ["ab"]),
        # A character has three bytes, or four.
        ((STAMP + "ab漢").encode()[:-2], ["ab"]),
        ((STAMP + "ab漢字").encode()[:-1], ["ab漢"]),
        ((STAMP + "ab漢字🎉").encode()[:-1], ["ab漢字"]),
        (f"{STAMP}ab漢字🎉cd", ["ab漢字🎉cd"]),
    ],
)
def test_a_stream_that_ends_in_good_order_within_a_line_loses_nothing_of_it(
    step: Any, hands: Any, shown: Shown, sent: str | bytes, first: list[str]
) -> None:
    whole, size = "ab漢字🎉cd", len(sent if isinstance(sent, bytes) else sent.encode())
    hands.fault(EndsAfter(size), "get", "*/log")
    run = start(step, hands)
    hands.log(hands.running(run.job), [STAMP + whole, *lines(2)])
    hands.until(lambda: "line 2" in shown())
    hands.success(run.job)
    run.succeeded()
    *parts, last = shown()
    assert ("".join(parts), last) == (whole, "line 2")
    assert parts[: len(first)] == first


def test_a_stream_that_ends_within_a_very_long_line_counts_what_is_left_out_of_the_whole(
    step: Any, hands: Any, shown: Shown
) -> None:
    hands.fault(EndsAfter(1_000_000), "get", "*/log")
    run = start(step, hands)
    # Its characters have three bytes, so that what is kept ends within one.
    hands.log(hands.running(run.job), [STAMP + 600_000 * "漢", *lines(2)])
    hands.until(lambda: "line 2" in shown())
    hands.success(run.job)
    run.succeeded()
    first, mark, last = shown()
    kept = first.partition(" … (at least ")[0]
    assert set(kept) == {"漢"}
    assert mark == f" … ({3 * (600_000 - len(kept)):,} bytes left out)"
    assert last == "line 2"


def test_it_holds_up_the_end_of_the_job_no_longer_than_a_moment(step: Any, hands: Any) -> None:
    run = start(step, hands)
    hands.running(run.job)
    hands.until(lambda: hands.count("get", "/log"))
    # The job succeeds while its container still runs and the log stays open.
    hands.set_conditions(run.job, "Succeeded")
    started = time.monotonic()
    run.succeeded()
    assert run.ended_at - started < 30
