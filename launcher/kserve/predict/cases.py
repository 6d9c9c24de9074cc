"""What is sent, what must come back, and how that is read: one case a request."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.kserve.predict.comparing import Tolerance, agrees
from kfp_pytorch.launcher.kserve.predict.exchange import Answers, Reply, Request
from kfp_pytorch.launcher.kserve.predict.forms import Given, Known, Prompt, Tensors
from kfp_pytorch.launcher.kserve.predict.protocols import openai, v1, v2, v2_grpc
from kfp_pytorch.launcher.kserve.predict.protocols.tensors import BadTensor, flattened
from kfp_pytorch.launcher.kserve.predict.target import Target


@dataclass(frozen=True)
class Case:
    """One request and what its answer must be.

    Attributes:
        expected: The expected answer of each item; None for any.
        read: Reads the answers of a reply; raises WrongAnswers.
        agrees: Compares an expected item with the one that came.
    """

    request: Request
    expected: tuple[Any, ...]
    read: Callable[[Reply], Answers]
    agrees: Callable[[Any, Any, Tolerance], bool] = agrees


_FORMS: dict[str, tuple[type[Given], ...]] = {
    "v1": (Known,),
    "v2": (Known, Tensors),
    "grpc": (Known, Tensors),
    "openai": (Prompt,),
}
_KEYS = {Known: "instance", Tensors: "inputs", Prompt: "messages or prompt"}


def protocol_of(requests: Sequence[Given]) -> str:
    """Return the protocol that requests are of by their form; V1 where there are none."""
    kinds = {type(each) for each in requests}
    return next((name for name, forms in _FORMS.items() if kinds <= set(forms)), "v1")


def check_forms(protocol: str, requests: Iterable[Given]) -> None:
    """Raise InputError: a request is of a form that the protocol does not have."""
    for i, each in enumerate(requests):
        if not isinstance(each, _FORMS[protocol]):
            fit = next(name for name, forms in _FORMS.items() if type(each) in forms)
            raise InputError(
                f"The request {i} of requests has {_KEYS[type(each)]}, which protocol {protocol!r} "
                f"does not have; {fit!r} has."
            )


def build(
    target: Target,
    requests: Sequence[Given],
    batch_size: int,
    model_input: v2.InputTensor | None = None,
) -> list[Case]:
    """Make the cases of requests.

    `batch_size`: how many instances go into a request, at most. `model_input`: where instances are
    sent in V2. Raises InputError: a request is of another protocol's form, or cannot be sent.
    """
    check_forms(target.protocol, requests)
    return [*_cases(target, requests, batch_size, model_input)]


def _cases(
    target: Target,
    requests: Sequence[Given],
    batch_size: int,
    model_input: v2.InputTensor | None,
) -> Iterator[Case]:
    def is_row(given: Given) -> bool:
        return isinstance(given, Known)

    for are_rows, group in itertools.groupby(requests, is_row):
        if not are_rows:
            yield from (_single(target, each) for each in group)
        elif target.protocol == "v1":
            yield from map(_v1, _batches(group, batch_size, lambda _: None))
        else:
            for batch in _batches(group, batch_size, _shape):
                yield _rows(target, batch, model_input)


def _batches(
    group: Iterable[Any], size: int, alike: Callable[[Any], Any]
) -> Iterator[tuple[Known, ...]]:
    """Yields instances that may be in one request, some at a time."""
    for _, same in itertools.groupby(group, alike):
        while batch := tuple(itertools.islice(same, size)):
            yield batch


def _shape(known: Known) -> Any:
    try:
        return flattened([known.instance])[1]
    except BadTensor:
        return None


def _v1(batch: Sequence[Known]) -> Case:
    return Case(
        request=v1.build([each.instance for each in batch]),
        expected=tuple(each.prediction for each in batch),
        read=lambda reply: Answers(v1.read(reply.body, len(batch))),
    )


def _rows(target: Target, batch: Sequence[Known], given: v2.InputTensor | None) -> Case:
    if given is None:
        raise InputError(
            "In V2 an instance needs the name and the datatype of the model's input, which the "
            "model does not say (an imported one does not). Give requests as "
            '{"inputs": [{"name": …, "datatype": …, "shape": …, "data": …}], "expected": …}.'
        )
    build, read = _codec(target)
    try:
        request = build(v2.body_of([each.instance for each in batch], given))
    except BadTensor as error:
        raise InputError(
            f"An instance is not what the model's input {given.name!r} takes: {error}."
        ) from None
    return Case(
        request=request,
        expected=tuple(each.prediction for each in batch),
        read=lambda reply: Answers(v2.rows(read(reply.body), len(batch))),
    )


def _single(target: Target, given: Any) -> Case:
    if isinstance(given, Prompt):
        return _prompt(target, given)
    wanted = [each["name"] for each in given.body.get("outputs", ())]
    build, read = _codec(target)
    return Case(
        request=build(given.body),
        expected=(given.expected,),
        read=lambda reply: Answers([v2.as_answer(read(reply.body, wanted))]),
        agrees=v2.tensors_agree,
    )


def _codec(target: Target) -> tuple[Callable[..., Request], Callable[..., Any]]:
    if target.protocol == "grpc":
        return partial(v2_grpc.build, model_name=target.model_name), v2_grpc.read
    return v2.build, v2.read


def _prompt(target: Target, given: Prompt) -> Case:
    if not (target.model_name or given.body.get("model")):
        raise InputError(
            "The OpenAI protocol names the model in each request: set model_name, such as the "
            "--model_name of KServe's runtime, or vLLM's --served-model-name."
        )
    return Case(
        request=openai.build(given, target.model_name),
        expected=(given.expected,),
        read=partial(openai.read, prompt=given),
        agrees=openai.text_agrees,
    )
