"""What surrounds a step's program on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kfp_pytorch.local import step


def test_a_step_whose_pod_is_refused_says_why_and_does_not_run(
    api_server: Any, tmp_path: Path
) -> None:
    setting = step.Setting("r", str(tmp_path), "nowhere", "wf", "u", api_server.url)
    ran = tmp_path / "ran"
    ended = subprocess.run(
        [sys.executable, "-m", step.__name__, "greet", "--", "touch", str(ran)],
        env={**os.environ, step.SETTING_ENV: json.dumps(asdict(setting))},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    events = [json.loads(line.partition(step.EVENT_MARK)[2]) for line in ended.stdout.splitlines()]
    assert [event["event"] for event in events] == ["started", "ended"]
    assert 'namespaces "nowhere" not found' in events[1]["stderr"]
    assert "Traceback" not in ended.stderr
    assert not ran.exists()
