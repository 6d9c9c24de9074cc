"""Version 2, the Open Inference Protocol, over REST: tensors in JSON.

https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kfp_pytorch.launcher.kserve.predict.advice import advice
from kfp_pytorch.launcher.kserve.predict.comparing import Tolerance, agrees
from kfp_pytorch.launcher.kserve.predict.exchange import Request, WrongAnswers, shown, words_of
from kfp_pytorch.launcher.kserve.predict.protocols.tensors import (
    BYTES,
    FILE,
    BadTensor,
    Tensor,
    checked,
    flattened,
)


@dataclass(frozen=True)
class InputTensor:
    """What the model's input is called and of which datatype."""

    name: str
    datatype: str


def body_of(instances: Sequence[Any], given: InputTensor) -> dict[str, Any]:
    """Make the body of a request with instances as the rows of one tensor.

    Raises BadTensor: they differ in shape, or are not of the input's datatype.
    """
    datatype = BYTES if any(isinstance(each, Mapping) for each in instances) else given.datatype
    data, shape = flattened(list(instances))
    checked(given.name, datatype, list(shape), data)
    tensor = {"name": given.name, "datatype": datatype, "shape": list(shape), "data": data}
    return {"inputs": [tensor]}


def build(body: Mapping[str, Any]) -> Request:
    """Make a request of its JSON; files in it become their base64 text."""
    inputs = [
        {**each, "data": [*map(_text, flattened(each["data"])[0])]} for each in body["inputs"]
    ]
    return Request(json.dumps({**body, "inputs": inputs}).encode())


def _text(value: Any) -> Any:
    return value[FILE] if isinstance(value, Mapping) else value


def read(body: bytes, wanted: Sequence[str] = ()) -> list[Tensor]:
    """Return the tensors of an answer, checked. `wanted`: outputs that must be there.

    Raises WrongAnswers.
    """
    try:
        outputs = json.loads(body)["outputs"]
    except (ValueError, TypeError, KeyError, RecursionError):
        said = words_of(body)
        raise WrongAnswers(f'The answer has no "outputs": {said}{advice(said)}') from None
    if not isinstance(outputs, list) or not all(isinstance(each, dict) for each in outputs):
        raise WrongAnswers(f'"outputs" of the answer is no list of tensors: {shown(outputs)}')
    found = []
    for i, each in enumerate(outputs):
        name = each.get("name")
        if not isinstance(name, str) or not name:
            raise WrongAnswers(f"outputs[{i}] of the answer has no name: {shown(each)}")
        try:
            fields = (each.get(field) for field in ("datatype", "shape", "data"))
            found.append(checked(name, *fields))
        except BadTensor as error:
            raise WrongAnswers(f"outputs[{i}] of the answer, {name!r}: {error}.") from None
    return complete(found, wanted)


def complete(found: list[Tensor], wanted: Sequence[str]) -> list[Tensor]:
    """Return the tensors. Raises WrongAnswers: there are none, or one is missing."""
    names = [each.name for each in found]
    if not found:
        raise WrongAnswers("The answer has no output tensors.")
    missing = [name for name in wanted if name not in names]
    if missing:
        raise WrongAnswers(f"The answer has no output {missing[0]!r}; it has {', '.join(names)}.")
    return found


def rows(found: Sequence[Tensor], count: int) -> list[Any]:
    """Return what the tensors say of each of `count` rows, as V1 would.

    An object of the outputs by name; of a single output its row alone. Raises WrongAnswers: a
    tensor has another number of rows.
    """
    for each in found:
        if each.shape[:1] != (count,):
            raise WrongAnswers(
                f"Output {each.name!r} has the shape {list(each.shape)}, for {count} rows."
            )
    by_name = {each.name: each.nested for each in found}
    if len(by_name) == 1:
        return [*next(iter(by_name.values()))]
    return [{name: values[i] for name, values in by_name.items()} for i in range(count)]


def as_answer(found: Sequence[Tensor]) -> dict[str, Any]:
    """Return the tensors' values by name, nested."""
    return {each.name: each.nested for each in found}


def tensors_agree(expected: Any, got: Mapping[str, Any], tolerance: Tolerance) -> bool:
    """Whether an answer has what is expected of it.

    `expected`: the values of outputs by name, nested or flat; or one entry for each row, which is
    compared as an answer of V1; or that entry alone, of a single row. `got`: as `as_answer` gives.
    """
    if isinstance(expected, Mapping):
        return all(
            name in got and _same(values, got[name], tolerance) for name, values in expected.items()
        )
    wanted = expected if isinstance(expected, list) else [expected]
    columns = [value if isinstance(value, list) else [value] for value in got.values()]
    if any(len(column) != len(wanted) for column in columns):
        return False
    found = (
        columns[0]
        if len(got) == 1
        else [dict(zip(got, row, strict=True)) for row in zip(*columns, strict=True)]
    )
    return agrees(wanted, found, tolerance)


def _same(expected: Any, got: Any, tolerance: Tolerance) -> bool:
    wanted = expected if isinstance(expected, list) else [expected]
    is_flat = not any(isinstance(item, list) for item in wanted)
    found = flattened(got)[0] if is_flat and isinstance(got, list) else got
    return agrees(wanted, found if isinstance(found, list) else [found], tolerance)
