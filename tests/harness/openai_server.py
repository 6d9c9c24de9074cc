"""Answers chats and completions as vLLM's server does, with a model that repeats its prompt.

https://github.com/vllm-project/vllm/tree/v0.11.0/vllm/entrypoints/openai
"""

from __future__ import annotations

import json
from typing import Any

from harness.model_server import Answer, Object

MODEL = "parrot"
JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream; charset=utf-8"}
CREATED = 1764230000


def respond(path: str, body: Object) -> Answer:
    """Answers a request."""
    is_chat = path.endswith("/v1/chat/completions")
    if not is_chat and not path.endswith("/v1/completions"):
        return json_answer(404, {"detail": "Not Found"})
    if body.get("model") != MODEL:
        return error(404, f"The model `{body.get('model')}` does not exist.", "NotFoundError")
    if ("messages" if is_chat else "prompt") not in body:
        return error(400, "Field required", "BadRequestError")
    said = body["messages"][-1]["content"] if is_chat else body["prompt"]
    tokens = said.split(" ")[: int(body.get("max_tokens") or 16)]
    words = [token if i == 0 else f" {token}" for i, token in enumerate(tokens)]
    if not body.get("stream"):
        return _whole(words, is_chat)
    with_usage = (body.get("stream_options") or {}).get("include_usage")
    return Answer(
        200, [event(each) for each in chunks(words, is_chat, with_usage)] + [DONE], EVENTS
    )


def event(data: Any) -> bytes:
    """One server-sent event."""
    return f"data: {json.dumps(data)}\n\n".encode()


DONE = b"data: [DONE]\n\n"


def chunks(words: list[str], is_chat: bool, with_usage: Any) -> list[Object]:
    """The events of a stream: the role, each token, the reason of the end, and the usage."""
    pieces: list[Object] = [{"delta": {"role": "assistant", "content": ""}}] if is_chat else []
    pieces += [{"delta": {"content": w}} if is_chat else {"text": w} for w in words]
    choices = [[{"index": 0, "finish_reason": None, **piece}] for piece in pieces]
    end: Object = {"delta": {}} if is_chat else {"text": ""}
    choices.append([{"index": 0, "finish_reason": "stop", **end}])
    found = [{**_about(is_chat, ".chunk"), "choices": each} for each in choices]
    return [*found, {**_about(is_chat, ".chunk"), "choices": [], **_usage(words)}][
        : None if with_usage else -1
    ]


def error(status: int, message: str, kind: str) -> Answer:
    """A refusal."""
    said = {"message": message, "type": kind, "param": None, "code": status}
    return json_answer(status, {"error": said})


def _whole(words: list[str], is_chat: bool) -> Answer:
    text = "".join(words)
    said: Object = (
        {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
    )
    choice = {"index": 0, "logprobs": None, "finish_reason": "stop", **said}
    return json_answer(200, {**_about(is_chat), "choices": [choice], **_usage(words)})


def _about(is_chat: bool, suffix: str = "") -> Object:
    name = f"chat.completion{suffix}" if is_chat else "text_completion"
    return {"id": "cmpl-1", "object": name, "created": CREATED, "model": MODEL}


def _usage(words: list[str]) -> Object:
    count = {"prompt_tokens": 5, "completion_tokens": len(words), "total_tokens": 5 + len(words)}
    return {"usage": count}


def json_answer(status: int, body: Object) -> Answer:
    """An answer in JSON."""
    return Answer(status, json.dumps(body).encode(), JSON)
