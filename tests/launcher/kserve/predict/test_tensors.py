from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_pytorch.launcher.kserve.predict.comparing import Tolerance
from kfp_pytorch.launcher.kserve.predict.exchange import WrongAnswers
from kfp_pytorch.launcher.kserve.predict.protocols import grpc_messages as messages
from kfp_pytorch.launcher.kserve.predict.protocols import v2, v2_grpc
from kfp_pytorch.launcher.kserve.predict.protocols.tensors import (
    BadTensor,
    Tensor,
    checked,
    flattened,
    from_bytes,
    to_bytes,
)

SIGNED = {
    f"INT{bits}": st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)
}
UNSIGNED = {f"UINT{bits}": st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64)}
FLOATS = {f"FP{bits}": st.floats(width=bits) for bits in (16, 32, 64)}  # type: ignore[arg-type]
VALUES = {
    **SIGNED,
    **UNSIGNED,
    **FLOATS,
    "BOOL": st.booleans(),
    "BYTES": st.text(),
    "BF16": st.sampled_from([0.0, 1.0, -2.5, 0.15625, math.inf]),
}


@settings(max_examples=60)
@given(st.data())
def test_every_datatype_survives_its_bytes(data: st.DataObject) -> None:
    datatype = data.draw(st.sampled_from(sorted(VALUES)))
    values = data.draw(st.lists(VALUES[datatype], max_size=6))
    tensor = checked("x", datatype, [len(values)], values)
    back = from_bytes("x", datatype, [len(values)], to_bytes(tensor))
    assert repr(back) == repr(tensor)


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "words"),
    [
        ("FP31", [1], [1.0], "datatype is 'FP31'"),
        (None, [1], [1.0], "datatype is None"),
        ("FP32", [-1], [1.0], "shape is [-1]"),
        ("FP32", "2", [1.0], "shape is '2'"),
        ("FP32", [2], [1.0], "has 2 elements, but data has 1"),
        ("FP32", [2, 2], [[1.0, 2.0, 3.0, 4.0]], "nested as [1, 4]"),
        ("FP32", [2], [[1.0], 2.0], "differ in length or depth"),
        ("FP32", [1], "x", "data is no list"),
        ("FP32", [1], ["1"], "no FP32"),
        ("INT8", [1], [128], "no INT8"),
        ("UINT8", [1], [-1], "no UINT8"),
        ("INT32", [1], [1.5], "no INT32"),
        ("BOOL", [1], [1], "no BOOL"),
        ("INT8", [1], [True], "no INT8"),
        ("BYTES", [1], [1], "no BYTES"),
        ("BYTES", [1], [{"b64": 1}], "no BYTES"),
    ],
)
def test_parts_that_do_not_go_together_are_named(
    datatype: Any, shape: Any, data: Any, words: str
) -> None:
    with pytest.raises(BadTensor, match=words.replace("[", r"\[")):
        checked("x", datatype, shape, data)


@pytest.mark.parametrize(
    ("datatype", "shape", "raw"),
    [
        ("FP32", [2], b"\0" * 7),
        ("BF16", [2], b"\0" * 3),
        ("BYTES", [1], b"\5\0\0\0ab"),
        ("BYTES", [1], b"\0\0"),
        ("BYTES", [2], b"\1\0\0\0a"),
        ("X", [1], b""),
    ],
)
def test_bytes_that_do_not_fit_a_shape_are_refused(
    datatype: str, shape: list[int], raw: bytes
) -> None:
    with pytest.raises(BadTensor):
        from_bytes("x", datatype, shape, raw)


def test_values_are_nested_as_the_shape_says() -> None:
    assert Tensor("x", "INT8", (2, 1, 2), [1, 2, 3, 4]).nested == [[[1, 2]], [[3, 4]]]
    assert Tensor("x", "INT8", (), [1]).nested == 1
    assert Tensor("x", "INT8", (2, 0), []).nested == []
    assert flattened([[[1, 2]], [[3, 4]]]) == ([1, 2, 3, 4], (2, 1, 2))


def answer(*outputs: Any) -> bytes:
    return json.dumps({"model_name": "m", "outputs": outputs}).encode()


LOGITS = {"name": "logits", "datatype": "FP32", "shape": [2, 2], "data": [0.1, 0.9, 0.8, 0.2]}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>", 'has no "outputs": <html>'),
        (b"", "it is empty"),
        (b'{"outputs": {}}', "is no list of tensors"),
        (answer(), "no output tensors"),
        (answer(5), "is no list of tensors"),
        (answer({**LOGITS, "name": ""}), r"outputs\[0\] of the answer has no name"),
        (answer({**LOGITS, "shape": [3, 2]}), "has 6 elements, but data has 4"),
        (answer({**LOGITS, "datatype": "FLOAT"}), "datatype is 'FLOAT'"),
        (answer({**LOGITS, "data": ["a"] * 4}), r"data\[0\] is 'a'"),
        (answer(LOGITS), "has no output 'class'; it has logits"),
    ],
)
def test_an_answer_of_v2_is_checked(body: bytes, words: str) -> None:
    with pytest.raises(WrongAnswers, match=words):
        v2.read(body, ["class"] if "class" in words else [])


def test_rows_of_several_outputs_are_objects_as_in_v1() -> None:
    found = [
        Tensor("class", "INT64", (2,), [3, 0]),
        Tensor("score", "FP32", (2, 1), [0.5, 0.7]),
    ]
    assert v2.rows(found, 2) == [{"class": 3, "score": [0.5]}, {"class": 0, "score": [0.7]}]
    assert v2.rows(found[:1], 2) == [3, 0]
    with pytest.raises(WrongAnswers, match="'class' has the shape"):
        v2.rows(found, 3)


@pytest.mark.parametrize(
    ("expected", "same"),
    [
        ({"logits": [[0.1, 0.9], [0.8, 0.2]]}, True),
        ({"logits": [0.1, 0.9, 0.8, 0.2]}, True),
        ({"logits": [0.1, 0.9, 0.8, 0.3]}, False),
        ({"logits": [[0.1, 0.9, 0.8, 0.2]]}, False),
        ({"other": [1]}, False),
        ([1, 0], True),
        ([1, 1], False),
        ([1], False),
        (1, False),
    ],
)
def test_an_answer_of_v2_is_compared_by_output_or_row_by_row(expected: Any, same: bool) -> None:
    got = v2.as_answer(v2.read(answer(LOGITS)))
    assert v2.tensors_agree(expected, got, Tolerance()) is same


def test_the_class_of_one_row_may_be_expected_alone() -> None:
    got = {"class": [3], "score": [0.5]}
    assert v2.tensors_agree(3, got, Tolerance())
    assert v2.tensors_agree([{"class": 3, "score": 0.5}], got, Tolerance())
    assert not v2.tensors_agree(2, got, Tolerance())


@pytest.mark.parametrize(
    ("raw", "shape", "words"),
    [
        ([b"\0" * 8, b""], [2], "1 outputs, but the bytes of 2"),
        ([b"\0" * 7], [2], "does not fit 7 bytes"),
        ([], [2], "has 2 elements, but data has 0"),
    ],
)
def test_an_answer_over_grpc_that_does_not_fit_is_refused(
    raw: list[bytes], shape: list[int], words: str
) -> None:
    message = messages.new("ModelInferResponse")
    message.outputs.add(name="y", datatype="FP32", shape=shape)
    message.raw_output_contents.extend(raw)
    with pytest.raises(WrongAnswers, match=words):
        v2_grpc.read(message.SerializeToString())


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(WrongAnswers, match="no message"):
        v2_grpc.read(b"\xff\xff")
