"""A job that merely runs costs the API server next to nothing."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from harness.api_server import start_in_thread
from harness.hands import Hands, connected

from kfp_pytorch.launcher.constants import POD
from kfp_pytorch.launcher.runtime import own_pod
from kfp_pytorch.launcher.waiting.limits import Limits

# An hour of the launcher's own limits takes so many seconds here.
HOUR = 3.6
IN_SECONDS = (
    "poll", "watch_idle", "watch_lifetime", "pods_watch_lifetime", "slow_interval", "log_idle",
    "quick_interval", "progress_interval",
)  # fmt: skip
MOST = 30
OWN_POD = {
    "metadata": {"name": "step", "namespace": "default"},
    "spec": {"containers": [{"name": "main", "image": "python"}]},
}


@pytest.mark.parametrize(
    "bookmark_every",
    [
        pytest.param(60.0, id="bookmarks", marks=pytest.mark.slow),
        pytest.param(1e9, id="no bookmarks"),
    ],
)
def test_an_hour_of_a_silent_job_takes_fewer_than_thirty_requests(
    step: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bookmark_every: float
) -> None:
    server = start_in_thread(tmp_path, bookmark_every_s=bookmark_every * HOUR / 3600)
    hands = Hands(server)
    hands.reset()
    server.call(server.api.create, POD, OWN_POD)
    monkeypatch.setenv("KFP_POD_NAME", "step")
    monkeypatch.setattr(own_pod, "_LIFETIME", own_pod._LIFETIME * HOUR / 3600)
    limits = {name: value * HOUR / 3600 for name, value in asdict(Limits()).items()}
    run = step(limits={name: limits[name] for name in IN_SECONDS}, on=connected(server))
    hands.running(run.job)
    hands.set_conditions(run.job, "Created", "Running")
    # Its start is another story.
    hands.until(lambda: hands.count("get", "/log") and hands.count("watch", "/pods"))
    begin = server.requests[-1].time + 0.05 * HOUR
    hands.until(lambda: server.requests[-1].time > begin + HOUR)
    hour = [r for r in server.requests if begin <= r.time < begin + HOUR]
    hands.success(run.job)
    run.succeeded()
    server.stop()
    assert [r for r in server.requests if r.verb == "watch" and r.path.endswith("/pods")]
    assert len(hour) < MOST, [f"{r.verb} {r.path}" for r in hour]
