from __future__ import annotations

import threading

import pytest

from kfp_pytorch.launcher.kserve.predict.exchange import NoAnswer, Request
from kfp_pytorch.launcher.kserve.predict.sending import concurrently

REQUESTS = [Request(str(i).encode()) for i in range(20)]


def test_so_many_requests_are_sent_at_once_and_their_answers_keep_the_order() -> None:
    together = threading.Barrier(4, timeout=10)

    def send(request: Request) -> bytes:
        together.wait()
        return request.body

    assert concurrently(send, REQUESTS, 4) == [request.body for request in REQUESTS]


def test_after_a_failure_no_further_request_is_sent() -> None:
    sent = []

    def send(request: Request) -> None:
        sent.append(request)
        raise NoAnswer("refused")

    with pytest.raises(NoAnswer):
        concurrently(send, REQUESTS, 1)
    assert len(sent) == 1
