"""Sends requests until they are answered, and several at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from kfp_pytorch.launcher.kserve.predict.advice import advice
from kfp_pytorch.launcher.kserve.predict.exchange import Client, NoAnswer, Reply, Request
from kfp_pytorch.launcher.runtime.printing import Progress

# Between two tries, in seconds.
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0
_REPORTED_EVERY = 60.0

S = TypeVar("S")
T = TypeVar("T")


def until_answered(
    client: Client,
    request: Request,
    url: str,
    ready_timeout: float,
    progress: Progress | None = None,
) -> list[Reply]:
    """Sends a request and, while the server is not there, sends it again.

    `url`: the server's, for messages. `ready_timeout`: seconds. `progress`: logs what is waited
    for. Returns the reply of each try; the last one is the answer. Raises NoAnswer: the server
    refused the request, or did not answer in time.
    """
    deadline = time.monotonic() + ready_timeout
    progress = progress or Progress(_REPORTED_EVERY)
    pause, replies = FIRST_PAUSE, list[Reply]()
    while True:
        reply = client.send(request)
        replies.append(reply)
        if reply.is_answer:
            return replies
        if not reply.is_transient:
            raise NoAnswer(f"{url} refused the request: {reply.said}{advice(reply.said, url)}")
        if time.monotonic() + pause > deadline:
            raise NoAnswer(
                f"{url} did not answer within {ready_timeout:g} s (ready_timeout); the last try "
                f"gave: {reply.said}{advice(reply.said, url)}"
            )
        progress.report("waiting for an answer", reply.said)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def concurrently(send: Callable[[S], T], items: Sequence[S], at_once: int) -> list[T]:
    """Calls `send` with each item, so many at once; returns what it returned, in order.

    Raises what the first call that failed raised; no further one is then started.
    """
    failed = threading.Event()

    def one(item: S) -> T | None:
        if failed.is_set():
            return None
        try:
            return send(item)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(at_once, thread_name_prefix="request") as threads:
        started = [threads.submit(one, item) for item in items]
        errors = [error for each in started if (error := each.exception()) is not None]
    if errors:
        raise errors[0]
    return [each.result() for each in started]  # type: ignore[misc] # None only after an error
