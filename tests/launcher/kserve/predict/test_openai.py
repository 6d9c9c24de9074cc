"""Language models, asked through a server that answers as vLLM does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import openai_server
from harness.model_server import Answer, ModelServer, serving
from harness.openai_server import DONE, EVENTS, chunks, event
from harness.predict_step import Step

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.kserve.predict.exchange import NoAnswer, WrongAnswers
from kfp_pytorch.launcher.kserve.predict.judging import TooSlow

CHAT = {"messages": [{"role": "user", "content": "Paris is in France"}]}
STREAM = {**CHAT, "stream": True}
COMPLETION = {"prompt": "one two three"}


@pytest.fixture
def llm() -> Iterator[ModelServer]:
    with serving(openai_server.respond) as model:
        yield model


@pytest.fixture
def chat(llm: ModelServer, tmp_path: Path) -> Step:
    class Chat(Step):
        def __call__(self, samples: Any = None, **inputs: Any) -> Any:
            given = {"protocol": "openai", "model_name": openai_server.MODEL, **inputs}
            return super().__call__(samples, **given)

    return Chat(llm.root, tmp_path)


def test_chats_and_completions_are_asked_at_kserves_paths(chat: Step, llm: ModelServer) -> None:
    outputs = chat(
        requests=[
            {**CHAT, "temperature": 0, "expected": "Paris is in France"},
            {**CHAT, "expected": {"contains": "France"}},
            {**COMPLETION, "expected": {"regex": "^one.*three$"}},
            COMPLETION,
        ]
    )
    assert outputs == (1.0, '"Paris is in France"')
    assert llm.paths == [
        *["/openai/v1/chat/completions"] * 2,
        *["/openai/v1/completions"] * 2,
    ]
    assert llm.bodies[0] == {"model": "parrot", **CHAT, "temperature": 0}
    assert chat.latencies["output_tokens_per_second"] > 0
    assert "output tokens/s" in chat.report
    assert "not compared" in chat.report


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("", "/openai/v1"),
        ("/openai/v1", "/openai/v1"),
        ("/v1/", "/v1"),
        ("/team/llm/v1", "/team/llm/v1"),
        ("/team/llm", "/team/llm/openai/v1"),
        ("/v1/chat/completions", "/v1"),
        ("/v1/models/parrot:predict", "/openai/v1"),
    ],
)
def test_a_url_of_a_gateway_or_of_vllm_itself_is_taken(
    chat: Step, llm: ModelServer, url: str, path: str
) -> None:
    chat(url=llm.root + url, requests=[CHAT])
    assert llm.paths == [f"{path}/chat/completions"]


@pytest.mark.parametrize("request_", [STREAM, {**COMPLETION, "stream": True}])
def test_a_stream_is_read_with_the_time_of_its_first_token(
    chat: Step, llm: ModelServer, request_: dict[str, Any]
) -> None:
    words = ["Paris", " is", " there"]
    parts = [event(each) for each in chunks(words, "messages" in request_, True)]
    slow = Answer(200, [*parts, DONE], EVENTS, first_pause_s=0.2, pause_s=0.02)
    llm.first = [slow]
    chat(requests=[{**request_, "expected": "Paris is there"}])
    assert llm.bodies[0]["stream_options"] == {"include_usage": True}
    assert 0.2 <= chat.latencies["first_token_p50"] < chat.latencies["latency_p50"] - 0.05
    assert chat.latencies["output_tokens_per_second"] == pytest.approx(
        3 / chat.latencies["latency_p50"], rel=0.01
    )
    assert "first token" in chat.report


def test_a_thought_is_a_token_and_no_part_of_the_answer(chat: Step, llm: ModelServer) -> None:
    thought = {"choices": [{"index": 0, "delta": {"reasoning_content": "Hm"}}]}
    said = chunks(["Yes"], True, False)
    llm.first = [Answer(200, [event(thought), *map(event, said), DONE], EVENTS, pause_s=0.3)]
    chat(requests=[{**STREAM, "expected": "Yes"}])
    assert chat.latencies["first_token_p50"] < 0.3
    assert "output_tokens_per_second" not in chat.latencies


def test_a_model_that_calls_a_tool_says_nothing(chat: Step, llm: ModelServer) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [{"type": "function"}]}
    llm.first = [openai_server.json_answer(200, {"choices": [{"index": 0, "message": message}]})]
    assert chat(requests=[CHAT]).sample_prediction == '""'


def test_every_choice_must_be_the_expected_one(chat: Step, llm: ModelServer) -> None:
    choices = [{"index": i, "text": text} for i, text in enumerate(("yes", "no"))]
    llm.first = [openai_server.json_answer(200, {"choices": choices})]
    message = chat.fails(WrongAnswers, requests=[{"prompt": "x", "n": 2, "expected": "yes"}])
    assert 'Request 1: expected "yes", got "no"' in message


def test_a_stream_that_is_cut_is_asked_for_again(chat: Step, llm: ModelServer) -> None:
    begun = [event(each) for each in chunks(["Par"], True, True)][:2]
    llm.first = [
        Answer(200, begun, EVENTS, cut=True),
        # A proxy ends it in order when the server behind it is gone.
        Answer(200, begun, EVENTS),
    ]
    chat(requests=[{**STREAM, "expected": "Paris is in France"}])
    assert len(llm.bodies) == 3
    assert "<td>200</td><td>2</td>" in chat.report


def test_a_stream_needs_no_mark_of_its_end_after_the_last_token(
    chat: Step, llm: ModelServer
) -> None:
    llm.first = [Answer(200, [event(each) for each in chunks(["Yes"], True, True)], EVENTS)]
    chat(requests=[{**STREAM, "expected": "Yes"}])
    assert len(llm.bodies) == 1


def test_a_stream_that_never_ends_well_is_told_of(chat: Step, llm: ModelServer) -> None:
    llm.first = [Answer(200, [event({"choices": []})], EVENTS)] * 2
    message = chat.fails(NoAnswer, requests=[STREAM], ready_timeout=0)
    assert "the answer ended before its end" in message


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([event({"error": {"message": "EngineDeadError", "code": 500}})], "EngineDeadError"),
        ([event({"error": {"message": "out of memory"}})], "out of memory"),
        ([b'{"choices": []}'], "is no stream of events"),
        ([b"data: {\n\n"], "is no JSON object"),
        ([event({"choices": 5})], 'no list "choices"'),
        ([event({"choices": [{"delta": 5}]})], "A choice of the answer is none"),
        ([event({"choices": [{"delta": {"content": 5}}]})], "has no text"),
        ([event({"choices": []})], "has no choices"),
    ],
)
def test_a_stream_of_another_form_is_wrong(
    chat: Step, llm: ModelServer, parts: list[bytes], words: str
) -> None:
    llm.first = [Answer(200, [*parts, DONE], EVENTS)]
    assert words in chat.fails(WrongAnswers, requests=[STREAM])


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b'{"choices": [5]}', b'{"choices": []}'])
def test_an_answer_of_another_form_is_wrong(chat: Step, llm: ModelServer, body: bytes) -> None:
    llm.first = [Answer(200, body)]
    chat.fails(WrongAnswers, requests=[CHAT])


def test_a_model_of_another_name_ends_the_step_with_what_the_server_says(chat: Step) -> None:
    message = chat.fails(NoAnswer, requests=[CHAT], model_name="x", ready_timeout=0)
    assert "The model `x` does not exist." in message


def test_a_wrong_text_is_shown(chat: Step) -> None:
    message = chat.fails(WrongAnswers, requests=[{**CHAT, "expected": {"contains": "Rome"}}])
    assert 'expected {"contains": "Rome"}, got "Paris is in France"' in message


def test_a_first_token_that_is_late_fails_the_step(chat: Step, llm: ModelServer) -> None:
    parts = [event(each) for each in chunks(["x"], True, True)]
    llm.first = [Answer(200, [*parts, DONE], EVENTS, first_pause_s=0.1)]
    message = chat.fails(TooSlow, requests=[STREAM], max_latency={"first_token_p95": 0.05})
    assert "first_token_p95 is 0.1" in message
    assert "over its limit of 0.05 s" in message


def test_a_long_stream_is_given_up_at_its_limit(chat: Step, llm: ModelServer) -> None:
    parts = [event(each) for each in chunks(["x"] * 100, True, True)]
    llm.first = [Answer(200, [*parts, DONE], EVENTS, pause_s=0.1)] * 2
    began = time.monotonic()
    chat.fails(NoAnswer, requests=[STREAM], request_timeout=1, ready_timeout=0)
    assert time.monotonic() - began < 4


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, "There is nothing to ask"),
        ({"model_name": "", "requests": [CHAT]}, "set model_name"),
        ({"requests": [{"instance": 1}]}, "'v1' has"),
        ({"requests": [CHAT], "max_latency": {"first_token_p50": 1}}, 'no request has "stream"'),
        ({"requests": [{**CHAT, "expected": {"regex": "("}}]}, "is no regular expression"),
        ({"requests": [{**CHAT, "expected": {"like": "x"}}]}, "must be a text"),
        ({"requests": [{**CHAT, "expected": 4}]}, "must be a text"),
        ({"requests": [{"messages": [], "expected": "x"}]}, "must be a list"),
        ({"requests": [{"prompt": ""}]}, "not empty"),
        ({"requests": [{**CHAT, **COMPLETION}]}, "one of them"),
    ],
)
def test_requests_that_cannot_work_are_refused(
    chat: Step, inputs: dict[str, Any], words: str
) -> None:
    assert words in chat.fails(InputError, **inputs)
