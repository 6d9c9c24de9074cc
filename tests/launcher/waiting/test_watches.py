"""Watches that miss events, and how soon the end of a job is seen in spite of them."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from harness.api_server import start_in_thread
from harness.faults.actions import Answer, Stall
from harness.faults.watches import BookmarksOnly, SilentWatch
from harness.hands import Hands, connected

from kfp_pytorch.launcher.errors import JobFailed
from kfp_pytorch.launcher.kubernetes.transport import RetryPolicy
from kfp_pytorch.launcher.waiting.limits import Limits

# How long what was seen of pods is believed.
SHIPPED = {name: getattr(Limits(), name) for name in ("poll", "watch_idle", "slow_interval")}


def running(step: Any, hands: Any, limits: dict[str, float], on: Any) -> Any:
    run = step(limits=limits, on=on)
    hands.running(run.job)
    hands.set_conditions(run.job, "Created", "Running")
    return run


def end_seen_after(step: Any, folder: Path, bookmark_every: float, **limits: float) -> float:
    """Seconds until a job's end is seen that no watch shows."""
    server = start_in_thread(folder, bookmark_every_s=bookmark_every)
    hands = Hands(server)
    hands.reset()
    hands.fault(BookmarksOnly(), "watch", "*", times=None)
    policy = RetryPolicy()
    run = running(step, hands, asdict(Limits()) | limits, connected(server, policy))
    hands.until(lambda: hands.count("watch", "/pytorchjobs") and hands.count("watch", "/pods"))
    started = time.monotonic()
    hands.set_conditions(run.job, "Running=False", "Succeeded")
    run.succeeded(400)
    server.stop()
    return run.ended_at - started


def test_a_watch_with_bookmarks_alone_is_confirmed_by_reads(step: Any, tmp_path: Path) -> None:
    assert end_seen_after(step, tmp_path, bookmark_every=0.2, watch_idle=2.0) < 20


@pytest.mark.slow
@pytest.mark.parametrize("bookmark_every", [60.0, 1e9], ids=["bookmarks", "no bookmarks"])
def test_an_end_that_no_watch_shows_is_seen_within_five_minutes(
    step: Any, tmp_path: Path, bookmark_every: float
) -> None:
    assert end_seen_after(step, tmp_path, bookmark_every) < 300


@pytest.mark.parametrize("watch", [BookmarksOnly(), SilentWatch()], ids=["bookmarks", "silent"])
def test_a_pod_that_cannot_start_is_seen_though_no_watch_shows_it(
    step: Any, hands: Any, clock: Any, monkeypatch: pytest.MonkeyPatch, watch: Any
) -> None:
    clock.install(monkeypatch, "waiting.watch")
    hands.fault(watch, "watch", "*/pods", times=None)
    run = step(SHIPPED)
    hands.set_conditions(run.job, "Created")
    hands.until(lambda: hands.count("watch", "/pods"))
    hands.waiting(run.job, "ImagePullBackOff")
    clock.ahead += 61.0
    assert "cannot pull the image" in run.failed(JobFailed, 20)


def no_pods_are_read(hands: Any) -> bool:
    before = hands.count("list", "/pods")
    time.sleep(0.3)
    return bool(hands.count("list", "/pods") == before)


@pytest.mark.parametrize("shown", ["by the end of its log", "by the job's status"])
def test_a_pod_that_failed_is_seen_though_no_watch_shows_it(
    step: Any, hands: Any, clock: Any, says: Any, monkeypatch: pytest.MonkeyPatch, shown: str
) -> None:
    clock.install(monkeypatch, "waiting.watch")
    by_log = shown == "by the end of its log"
    hands.fault(BookmarksOnly(), "watch", "*/pods", times=None)
    if not by_log:
        hands.fault(Answer(500), "get", "*/log", times=None)
    run = step(SHIPPED | {"failed_pod": 0.5}, restart_policy="Never")
    hands.running(run.job)
    hands.set_conditions(run.job, "Created", "Running")
    says("running")
    hands.until(lambda: no_pods_are_read(hands))
    clock.ahead += 61.0
    hands.ended(run.job, 1)
    if not by_log:
        hands.set_conditions(run.job, "Created", "Running", replicaStatuses={})
    assert "ended with exit code 1" in run.failed(JobFailed, 20)


def test_a_watch_whose_headers_never_come_delays_no_limit(step: Any, hands: Any) -> None:
    hands.fault(Stall(), "watch", times=None)
    on = connected(hands.server, RetryPolicy())
    run = step(limits=asdict(Limits()) | {"start": 1.0}, on=on)
    assert "(start_timeout)" in run.failed(JobFailed, 25)
    hands.server.go_away(0.05)


@pytest.mark.slow
def test_a_watch_whose_headers_never_come_is_given_up_for_a_read(step: Any, hands: Any) -> None:
    hands.fault(Stall(), "watch", "*", times=None)
    on = connected(hands.server, RetryPolicy())
    run = running(step, hands, asdict(Limits()), on)
    hands.until(lambda: hands.count("watch", "/pytorchjobs"))
    hands.set_conditions(run.job, "Running=False", "Succeeded")
    run.succeeded(90)
