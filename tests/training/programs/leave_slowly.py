"""Rank 0 closes its reports only after it has lost the other. Run by `runpy` in each rank."""

from __future__ import annotations

import os
import threading
from typing import Any

from kfp_pytorch.training.faults.emergency_checkpoint import EmergencySave
from kfp_pytorch.training.telemetry.reports import Telemetry

attempt, close, attempted = EmergencySave.attempt, Telemetry.__exit__, threading.Event()


def recorded_attempt(self: EmergencySave) -> None:
    attempt(self)
    attempted.set()


def slow_close(self: Telemetry, *error: Any) -> None:
    attempted.wait(300)
    close(self, *error)


if os.environ["RANK"] == "0":
    EmergencySave.attempt, Telemetry.__exit__ = recorded_attempt, slow_close  # type: ignore[method-assign]
