"""Turns the numbers of a request into a tensor, or names the one that cannot be converted."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from kfp_pytorch.serving.errors import BadRequest
from kfp_pytorch.serving.export import DATATYPES, TensorSpec

# The protocol's names of what numpy calls float16, int8 and so on.
NUMPY_TYPES = {
    name: np.dtype(name.lower().replace("fp", "float"))
    for name in (*DATATYPES, "UINT16", "UINT32", "UINT64")
}

# How `array` calls the types to which it converts JSON's numbers as the slow checks would.
_ARRAY_CODES = dict(
    zip(
        ("FP32", "FP64", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
        "fdbhiqBHIQ",
        strict=True,
    )
)

JSON_NAMES = {list: "a list", dict: "an object", str: "a string", bool: "a boolean"}
SHOWN = 40
FLOAT_MAX = int(np.finfo(np.float64).max)

Array = npt.NDArray[Any]


def from_nested(value: Any, spec: TensorSpec, field: str, booleans: bool = True) -> Array:
    """Makes a tensor of nested JSON lists, as version 1 of the protocol has them.

    `booleans`: whether there may be some, which are no numbers. Raises BadRequest: the lists are
    not of the model's shape, or hold what its type cannot.
    """
    fast = None if booleans else _fast(value, spec.shape, spec.datatype)
    if fast is not None:
        return fast
    numbers, shape = _flatten(value, spec.shape, field)
    return _cast(_array(numbers, shape, field), spec.datatype, field)


def from_flat(
    data: Any,
    shape: Sequence[int],
    datatype: str,
    spec: TensorSpec,
    field: str,
    booleans: bool = True,
) -> Array:
    """Makes a tensor of an input of version 2 of the protocol, flat or nested as `shape` says.

    Raises BadRequest: `shape`, `datatype` and `data` do not agree with the model or each other.
    """
    check_tensor(shape, datatype, spec, field)
    field = f"{field}.data"
    nested = isinstance(data, list) and bool(data) and isinstance(data[0], list)
    given: Sequence[int] = shape if nested else (prod(shape),)
    fast = None if booleans else _fast(data, given, datatype)
    if fast is None:
        numbers, given = _flatten(data, given, field)
        # First as the request's type: half a number is wrong in INT64, whatever the model takes.
        fast = _cast(_array(numbers, given, field), datatype, field)
    return _to_model(fast.reshape(tuple(shape)), spec, field)


def from_bytes(
    data: bytes | memoryview, shape: Sequence[int], datatype: str, spec: TensorSpec, field: str
) -> Array:
    """Makes a tensor of the bytes of one, without a copy where its type is the model's.

    Whole numbers of 8 bits stay that where the model takes floats: they are converted where the
    model runs. Raises BadRequest as `from_flat` does.
    """
    check_tensor(shape, datatype, spec, field)
    dtype = NUMPY_TYPES[datatype]
    if len(data) != prod(shape) * dtype.itemsize:
        raise BadRequest(
            f"{field}: {len(data)} bytes of data; {list(shape)} of {datatype} has "
            f"{prod(shape) * dtype.itemsize}"
        )
    return from_array(np.frombuffer(data, dtype).reshape(tuple(shape)), spec, field)


def from_numbers(
    numbers: Array, shape: Sequence[int], datatype: str, spec: TensorSpec, field: str
) -> Array:
    """Makes a tensor of a flat array of any type. Raises BadRequest as `from_flat` does."""
    check_tensor(shape, datatype, spec, field)
    if numbers.size != prod(shape):
        raise BadRequest(f"{field}: expected {prod(shape)} elements, found {numbers.size}")
    return _to_model(_cast(numbers, datatype, field).reshape(tuple(shape)), spec, field)


def from_array(numbers: Array, spec: TensorSpec, field: str) -> Array:
    """Checks the numbers of a tensor of the model's shape, and converts them to its type.

    Raises BadRequest: a number that the type cannot hold.
    """
    if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
        _cast(numbers, spec.datatype, field)
    return _to_model(numbers, spec, field)


def check_tensor(shape: Sequence[int], datatype: str, spec: TensorSpec, field: str) -> None:
    """Compares what a request states of its tensor with the model's. Raises BadRequest."""
    if datatype not in NUMPY_TYPES:
        why = f"{datatype!r} is not a number's type; the model takes {spec.datatype}"
        raise BadRequest(f"{field}.datatype: {why}")
    _check_shape(shape, spec.shape, f"{field}.shape")


def _to_model(numbers: Array, spec: TensorSpec, field: str) -> Array:
    target = NUMPY_TYPES[spec.datatype]
    small = numbers.dtype == np.uint8 and target.kind == "f"
    if small or numbers.dtype == target:
        return numbers
    return _cast(numbers, spec.datatype, field)


def _fast(value: Any, wanted: Sequence[int], datatype: str) -> Array | None:
    """Converts lists that have nothing wrong, without looking at each number in Python.

    None: something may be wrong, or the type has no such way. `value` holds no booleans, which
    would pass for numbers.
    """
    code = _ARRAY_CODES.get(datatype)
    level, shape = [value], list[int]()
    if code is None:
        return None
    try:
        for want in wanted:
            (length,) = set(map(len, level))
            if length == 0 or want not in (-1, length):
                return None
            level = level[0] if len(level) == 1 else list(chain.from_iterable(level))
            shape.append(length)
        numbers = np.frombuffer(array(code, level), NUMPY_TYPES[datatype])
    except (TypeError, ValueError, OverflowError):
        return None
    if numbers.size != prod(shape) or (code in "fd" and not np.isfinite(numbers).all()):
        return None
    return numbers.reshape(shape)


def _check_shape(shape: Sequence[int], wanted: Sequence[int], field: str) -> None:
    fits = len(shape) == len(wanted) and all(
        n > 0 if want == -1 else n == want for n, want in zip(shape, wanted, strict=True)
    )
    if not fits:
        raise BadRequest(
            f"{field}: {list(shape)} does not fit the model's {list(wanted)} "
            f"(-1 is any size from 1 on)"
        )


def _flatten(value: Any, wanted: Sequence[int], field: str) -> tuple[list[Any], list[int]]:
    """Flattens level by level, with built-in functions only: a loop over numbers takes too long."""
    level, shape = [value], list[int]()
    for want in wanted:
        _all_of(level, {list}, "a list", shape, field)
        lengths = list(map(len, level))
        expected = lengths[0] if want == -1 else want
        for index, length in enumerate(lengths):
            if length != expected or length == 0:
                place = _place(field, shape, index)
                sizes = f"{expected} elements" if expected else "at least one element"
                raise BadRequest(f"{place}: expected {sizes}, found {length}")
        level = list(chain.from_iterable(level))
        shape.append(expected)
    _all_of(level, {int, float}, "a number", shape, field)
    return level, shape


def _all_of(
    level: list[Any], types: set[type], expected: str, shape: Sequence[int], field: str
) -> None:
    if set(map(type, level)) <= types:
        return
    index = next(i for i, item in enumerate(level) if type(item) not in types)
    place = _place(field, shape, index)
    raise BadRequest(f"{place}: expected {expected}, found {_describe(level[index])}")


def _describe(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "a number"
    name = JSON_NAMES.get(type(value), type(value).__name__)
    return f"{name} ({value[:SHOWN]!r})" if isinstance(value, str) else name


def _place(field: str, shape: Sequence[int], index: int) -> str:
    if not shape:
        return field
    return field + "".join(f"[{i}]" for i in np.unravel_index(index, tuple(shape)))


def _array(numbers: list[Any], shape: Sequence[int], field: str) -> Array:
    array = np.array(numbers)
    if array.dtype == object:  # integers of more than 64 bits, which V1's JSON makes floats
        too_large = [abs(number) > FLOAT_MAX for number in numbers]
        if any(too_large):
            place = _place(field, shape, too_large.index(True))
            raise BadRequest(f"{place}: the integer is larger than any float")
        array = np.array(numbers, dtype=np.float64)
    return array.reshape(tuple(shape))


def _cast(array: Array, datatype: str, field: str) -> Array:
    """Casts, refusing what would become another number (but for the rounding of floats)."""
    target = NUMPY_TYPES[datatype]
    with np.errstate(all="ignore"):
        cast = array.astype(target)
    if target.kind == "f":
        wrong = ~np.isfinite(cast)
    else:
        limits = np.iinfo(target)
        wrong = (array < limits.min) | (array > limits.max) | (cast != array)
    if wrong.any():
        first = np.unravel_index(int(wrong.argmax()), array.shape)
        place = _place(field, array.shape, int(wrong.argmax()))
        raise BadRequest(f"{place}: {array[first]!s} is not a finite {datatype}")
    return cast
