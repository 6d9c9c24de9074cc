"""Ports for programs that take seconds to start and listen."""

from __future__ import annotations

import os
import random
import socket

# Systems take the ports of outgoing connections from above 32,000, `local` those of pods from
# above 20,000. Each of the processes that run tests has some of its own.
_EACH = 500
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_LEFT = list(range(10_000 + _WORKER * _EACH, 10_000 + (_WORKER + 1) * _EACH))
random.shuffle(_LEFT)


def free_port() -> int:
    """A port that nobody listens at, and that nobody else is given."""
    while True:
        port = _LEFT.pop()
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
