"""The OpenAI protocol: chats and completions, whole or as a stream of server-sent events.

https://platform.openai.com/docs/api-reference/chat
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_pytorch.launcher.kserve.predict.advice import advice
from kfp_pytorch.launcher.kserve.predict.comparing import Tolerance
from kfp_pytorch.launcher.kserve.predict.exchange import (
    Answers,
    Reply,
    Request,
    WrongAnswers,
    any_body,
    shown,
    words_of,
)
from kfp_pytorch.launcher.kserve.predict.forms import CONTAINS, Prompt

_END = b"[DONE]"
# Not every server sends that; what ends a choice, or the stream by an error, all do.
_FINISHED = re.compile(rb'"finish_reason"\s*:\s*"|"error"\s*:\s*[{"]')
# What a reasoning model writes before its answer; each is a token that came.
_BEFORE_CONTENT = ("reasoning_content", "reasoning", "tool_calls")


def build(prompt: Prompt, model_name: str) -> Request:
    """Make a request. `model_name`: where the request names no model of its own."""
    body = {"model": model_name, **prompt.body}
    if prompt.is_stream:
        # Else a stream does not say how many tokens it has.
        body.setdefault("stream_options", {"include_usage": True})
    return Request(
        body=json.dumps(body).encode(),
        path="/chat/completions" if prompt.is_chat else "/completions",
        is_whole=_is_whole if prompt.is_stream else any_body,
    )


def _is_whole(stream: bytes) -> bool:
    return stream.rstrip().endswith(_END) or _FINISHED.search(stream) is not None


def read(reply: Reply, prompt: Prompt) -> Answers:
    """Return the texts of an answer. Raises WrongAnswers: it is none of this protocol."""
    answer = _streamed(reply) if prompt.is_stream else _whole(reply.body)
    if not answer.texts:
        raise WrongAnswers(f"The answer has no choices: {words_of(reply.body)}")
    texts = [answer.texts[index] for index in sorted(answer.texts)]
    return Answers(texts, answer.output_tokens, answer.first_token)


def text_agrees(expected: Any, got: Any, _tolerance: Tolerance) -> bool:
    """Whether a text is the expected one, but for space around it, contains it, or matches it."""
    if not isinstance(got, str):
        return False
    if isinstance(expected, str):
        return got.strip() == expected.strip()
    (kind, wanted), *_ = expected.items()
    return wanted in got if kind == CONTAINS else re.search(wanted, got) is not None


@dataclass
class _Answer:
    texts: dict[int, str] = field(default_factory=dict)  # by the choice's index
    output_tokens: int | None = None
    first_token: float | None = None


def _whole(body: bytes) -> _Answer:
    answer = _Answer()
    _add(answer, _object(body), "message")
    return answer


def _streamed(reply: Reply) -> _Answer:
    answer = _Answer()
    for end, data in _events(reply.body):
        if data == _END:
            break
        if _add(answer, _object(data), "delta") and answer.first_token is None:
            answer.first_token = next(s for size, s in reply.arrivals if size >= end)
    return answer


def _events(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the data of each server-sent event, and where in the body it ends."""
    at = 0
    for line in body.splitlines(keepends=True):
        at += len(line)
        name, _, value = line.partition(b":")
        if name == b"data":
            yield at, value.strip()
        elif line.strip() and name not in (b"", b"event", b"id", b"retry"):
            raise WrongAnswers(f"The answer is no stream of events: {words_of(body)}")


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise WrongAnswers(
            f"The answer is no JSON object: {words_of(data)}{advice(words_of(data))}"
        )
    if found.get("error"):
        # vLLM's stream has the status 200 before its engine fails.
        raise WrongAnswers(f"The server answered with an error: {shown(found['error'])}")
    return found


def _add(answer: _Answer, found: Mapping[str, Any], part: str) -> bool:
    """Adds what an answer, or an event of a stream, says; returns whether a token came."""
    usage, choices = found.get("usage"), found.get("choices")
    if isinstance(usage, dict) and type(usage.get("completion_tokens")) is int:
        answer.output_tokens = usage["completion_tokens"]
    if not isinstance(choices, list):
        raise WrongAnswers(f'The answer has no list "choices": {shown(found)}')
    came = False
    for choice in choices:
        said = choice.get(part, choice) if isinstance(choice, dict) else None
        if not isinstance(said, dict) or not isinstance(choice.get("index", 0), int):
            raise WrongAnswers(f"A choice of the answer is none: {shown(choice)}")
        # A chat's content is null where the model calls a tool; a completion has its text here.
        text = said.get("content", said.get("text"))
        if not isinstance(text, str | None):
            raise WrongAnswers(f"A choice of the answer has no text: {shown(choice)}")
        index = choice.get("index", 0)
        answer.texts[index] = answer.texts.get(index, "") + (text or "")
        came = came or bool(text) or any(said.get(key) for key in _BEFORE_CONTENT)
    return came
