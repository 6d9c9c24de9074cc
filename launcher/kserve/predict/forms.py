"""The forms in which requests are given, each with the answer that is expected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import readers
from kfp_pytorch.launcher.kserve.predict.protocols import tensors

EXPECTED = "expected"
# Two ways to compare a text but as a whole.
CONTAINS, REGEX = "contains", "regex"


@dataclass(frozen=True)
class Known:
    """An instance: one row of a request in V1 or V2."""

    instance: Any  # what is sent
    prediction: Any = None  # what must come back; None for anything


@dataclass(frozen=True)
class Tensors:
    """A whole request in V2."""

    body: Mapping[str, Any]  # as REST's JSON has it
    expected: Any = None


@dataclass(frozen=True)
class Prompt:
    """A request of the OpenAI protocol."""

    body: Mapping[str, Any]
    expected: Any = None  # a text, {"contains": …} or {"regex": …}

    @property
    def is_chat(self) -> bool:
        """Whether it is a chat, and not a text to be completed."""
        return "messages" in self.body

    @property
    def is_stream(self) -> bool:
        """Whether its answer is to come as it is made."""
        return bool(self.body.get("stream"))


Given = Known | Tensors | Prompt

_FORMS = (
    'must be {"instance": …, "prediction": …} or {"instances": […], "predictions": […]}; in V2 '
    'also {"inputs": […], "expected": …}; in the OpenAI protocol {"messages": […], "expected": …} '
    'or {"prompt": …, "expected": …}'
)


def read_requests(name: str, value: Any) -> tuple[Given, ...]:
    """Read the input `requests`. Raises InputError."""
    return tuple(
        given
        for i, item in enumerate(readers.sequence(name, value))
        for given in _read(f"{name}[{i}]", item)
    )


def _read(name: str, item: Any) -> list[Given]:
    fields = set(item) if isinstance(item, dict) else set()
    if "instance" in fields and fields <= {"instance", "prediction"}:
        return [Known(item["instance"], item.get("prediction"))]
    if "instances" in fields and fields <= {"instances", "predictions"}:
        return [*_several(name, item["instances"], item.get("predictions"))]
    body = {key: part for key, part in (item if fields else {}).items() if key != EXPECTED}
    if "inputs" in fields:
        return [Tensors(_checked_tensors(name, body), item.get(EXPECTED))]
    if "messages" in fields or "prompt" in fields:
        return [Prompt(_checked_prompt(name, body), _text(f"{name}[{EXPECTED!r}]", item))]
    raise InputError(f"{name} {_FORMS}; it has {sorted(fields) or 'no fields'}.")


def _several(name: str, instances: Any, predictions: Any) -> list[Known]:
    if not isinstance(instances, list) or not isinstance(predictions, list | None):
        raise InputError(f"{name}: instances and predictions must be lists.")
    if not instances:
        raise InputError(f"{name} has no instances; leave it out to ask the model's own samples.")
    if predictions is None:
        return [Known(instance) for instance in instances]
    if len(instances) != len(predictions):
        raise InputError(
            f"{name} has {len(instances)} instances but {len(predictions)} predictions."
        )
    return [Known(i, p) for i, p in zip(instances, predictions, strict=True)]


def _checked_tensors(name: str, body: dict[str, Any]) -> dict[str, Any]:
    inputs = body["inputs"]
    if not isinstance(inputs, list) or not inputs:
        raise InputError(f"{name}['inputs'] must be a list of one tensor or more.")
    for i, each in enumerate(inputs):
        place = f"{name}['inputs'][{i}]"
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            raise InputError(f"{place} must be a tensor with name, datatype, shape and data.")
        try:
            fields = (each.get(field) for field in ("datatype", "shape", "data"))
            tensors.to_bytes(tensors.checked(each["name"], *fields))
        except tensors.BadTensor as error:
            raise InputError(f"{place}: {error}.") from None
    outputs = body.get("outputs", [])
    if not isinstance(outputs, list) or not all(
        isinstance(each, dict) and isinstance(each.get("name"), str) for each in outputs
    ):
        raise InputError(
            f"{name}['outputs'] must be a list of {{\"name\": …}}, the outputs that are wanted; "
            f"what they must hold is {EXPECTED!r}."
        )
    return body


def _checked_prompt(name: str, body: dict[str, Any]) -> dict[str, Any]:
    messages, prompt = body.get("messages"), body.get("prompt")
    if messages is not None and prompt is not None:
        raise InputError(f"{name} has messages and prompt; it may have one of them.")
    if prompt is not None and not (isinstance(prompt, str | list) and prompt):
        raise InputError(f"{name}['prompt'] must be a text or a list, which is not empty.")
    if messages is not None and not (
        isinstance(messages, list)
        and messages
        and all(isinstance(each, dict) and "role" in each for each in messages)
    ):
        raise InputError(f'{name}[\'messages\'] must be a list of {{"role": …, "content": …}}.')
    return body


def _text(name: str, item: Mapping[str, Any]) -> Any:
    expected = item.get(EXPECTED)
    if expected is None or isinstance(expected, str):
        return expected
    fields = expected if isinstance(expected, dict) else {}
    kind, text = next(iter(fields.items()), ("", None))
    if len(fields) != 1 or kind not in (CONTAINS, REGEX) or not isinstance(text, str):
        raise InputError(f'{name} must be a text, {{"contains": "…"}} or {{"regex": "…"}}.')
    if kind == REGEX:
        try:
            re.compile(text)
        except re.error as error:
            raise InputError(f"{name} is no regular expression: {error}.") from None
    return expected
