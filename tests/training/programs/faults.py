"""Faults that a test can send to a rank as a signal."""

from __future__ import annotations

import os
import signal
import threading

HANG = signal.SIGUSR1
RAISE = signal.SIGUSR2
LEAVE = signal.SIGRTMIN


def hang_here(_signal, _frame):
    threading.Event().wait()


def raise_here(_signal, _frame):
    raise ValueError("a fault of the test's own")


def leave_here(_signal, _frame):
    os._exit(3)


def install() -> None:
    signal.signal(HANG, hang_here)
    signal.signal(RAISE, raise_here)
    signal.signal(LEAVE, leave_here)
