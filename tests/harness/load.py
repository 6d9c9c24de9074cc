"""Sends requests one after the other, and keeps what came of each.

    python tests/harness/load.py URL FILE

asks until SIGTERM, and then writes the answers to FILE as JSON; see `Load.summary`. What is sent
are the bodies, one JSON document a line, of stdin.
"""

from __future__ import annotations

import http.client
import json
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


class Load:
    """A client that keeps its connection, in a thread of its own; a block ends it."""

    def __init__(self, url: str, bodies: list[bytes] = [b""], pause: float = 0.0) -> None:  # noqa: B006
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.netloc, timeout=60)
        self._path, self._bodies, self._pause = parts.path or "/", bodies, pause
        self.answers: Counter[str] = Counter()
        self.failed: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Wait for the answer to the last request."""
        self._ended.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def summary(self) -> dict[str, Any]:
        """What came: how often each answer of status 200, and what else."""
        return {"answers": dict(self.answers), "failed": self.failed}

    def _run(self) -> None:
        count = 0
        while not self._ended.is_set():
            self._ask(self._bodies[count % len(self._bodies)])
            count += 1
            self._ended.wait(self._pause)

    def _ask(self, body: bytes) -> None:
        headers = {"content-type": "application/json"} if body else {}
        try:
            method = "POST" if body else "GET"
            self._connection.request(method, self._path, body or None, headers)
            answer = self._connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            self.failed.append(repr(error))
            return
        if answer.status == 200:
            self.answers[text] += 1
        else:
            self.failed.append(f"{answer.status} {text[:200]}")


def main(url: str, path: str) -> None:
    """Ask until SIGTERM."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    bodies = [line.strip().encode() for line in sys.stdin if line.strip()]
    # What it asks trains beside it, on the same cores.
    with Load(url, bodies, pause=0.02) as load:
        ended.wait()
    Path(path).write_text(json.dumps(load.summary()))


if __name__ == "__main__":
    main(*sys.argv[1:])
