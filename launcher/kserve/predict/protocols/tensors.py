"""Tensors of the Open Inference Protocol: names, datatypes, shapes, and values in row-major order.

https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# The letter of `struct` for each datatype of a fixed size; BF16 is the upper half of an FP32.
_LETTERS = {
    **dict(zip(("BOOL", "UINT8", "UINT16", "UINT32", "UINT64"), "?BHIQ", strict=True)),
    **dict(zip(("INT8", "INT16", "INT32", "INT64"), "bhiq", strict=True)),
    **dict(zip(("FP16", "FP32", "FP64"), "efd", strict=True)),
}
_FLOATS = ("FP16", "BF16", "FP32", "FP64")
BYTES = "BYTES"
DATATYPES = (*_LETTERS, "BF16", BYTES)
# The one key of a value that is a file.
FILE = "b64"


class BadTensor(ValueError):
    """A tensor whose parts do not go together; says which, and why."""


@dataclass(frozen=True)
class Tensor:
    """A tensor that was checked."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: list[Any]  # flat

    @property
    def nested(self) -> Any:
        """The values as nested lists of its shape; one value where it has no dimension."""
        values = list(self.data)
        for size in reversed(self.shape[1:]):
            values = [values[i : i + size] for i in range(0, len(values), size)] if size else []
        return values if self.shape else values[0]


def checked(name: str, datatype: Any, shape: Any, data: Any) -> Tensor:
    """Check the parts of a tensor, as JSON has them.

    `data`: flat, or nested as the shape says. Raises BadTensor.
    """
    if datatype not in DATATYPES:
        raise BadTensor(f"datatype is {datatype!r}; it must be one of {', '.join(DATATYPES)}")
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise BadTensor(f"shape is {shape!r:.80}; it must be a list of whole numbers")
    if not isinstance(data, list):
        raise BadTensor("data is no list")
    flat, own = flattened(data)
    if len(own) > 1 and own != tuple(shape):
        raise BadTensor(f"shape is {shape}, but data is nested as {list(own)}")
    if len(flat) != math.prod(shape):
        raise BadTensor(f"shape {shape} has {math.prod(shape)} elements, but data has {len(flat)}")
    is_one = _check_of(datatype)
    for i, value in enumerate(flat):
        if not is_one(value):
            raise BadTensor(f"data[{i}] is {value!r:.80}, which is no {datatype}")
    return Tensor(name, datatype, tuple(shape), flat)


def flattened(value: list[Any]) -> tuple[list[Any], tuple[int, ...]]:
    """Return the values of nested lists and their shape. Raises BadTensor: they are ragged."""
    if not any(isinstance(item, list) for item in value):
        return value, (len(value),)
    parts = [flattened(item) for item in value if isinstance(item, list)]
    shapes = {shape for _, shape in parts}
    if len(parts) != len(value) or len(shapes) != 1:
        raise BadTensor("its lists differ in length or depth")
    return [item for flat, _ in parts for item in flat], (len(value), *shapes.pop())


def _check_of(datatype: str) -> Callable[[Any], bool]:
    """What tells whether a value of JSON is one of a datatype."""
    if datatype == BYTES:
        return lambda value: isinstance(value, str) or is_file(value)
    if datatype == "BOOL":
        return lambda value: isinstance(value, bool)
    if datatype in _FLOATS:
        return lambda value: isinstance(value, (int, float)) and not isinstance(value, bool)
    bits = int(datatype.lstrip("UINT"))
    low, high = (0, 2**bits) if datatype[0] == "U" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    return lambda value: type(value) is int and low <= value < high


def is_file(value: Any) -> bool:
    """Whether a value is a file, as V1 has them."""
    return isinstance(value, dict) and value.keys() == {FILE} and isinstance(value[FILE], str)


def to_bytes(tensor: Tensor) -> bytes:
    """Return the values as little-endian bytes. Raises BadTensor: a value has no such form."""
    try:
        if tensor.datatype == BYTES:
            encoded = map(_file, tensor.data)
            return b"".join(struct.pack("<I", len(each)) + each for each in encoded)
        if tensor.datatype == "BF16":
            words = struct.pack(f"<{len(tensor.data)}f", *tensor.data)
            return b"".join(words[i + 2 : i + 4] for i in range(0, len(words), 4))
        return struct.pack(f"<{len(tensor.data)}{_LETTERS[tensor.datatype]}", *tensor.data)
    except (struct.error, OverflowError, ValueError) as error:
        raise BadTensor(f"data has no form as {tensor.datatype}: {error}") from None


def _file(value: Any) -> bytes:
    return (
        value.encode() if isinstance(value, str) else base64.b64decode(value[FILE], validate=True)
    )


def from_bytes(name: str, datatype: str, shape: Sequence[int], raw: bytes) -> Tensor:
    """Return the tensor of little-endian bytes. Raises BadTensor: they do not fit the shape."""
    if datatype not in DATATYPES:
        raise BadTensor(f"datatype is {datatype!r}; it must be one of {', '.join(DATATYPES)}")
    count = math.prod(shape)
    if datatype == BYTES:
        data = _unpacked(raw)
        if len(data) != count:
            raise BadTensor(f"shape {list(shape)} has {count} elements, but there are {len(data)}")
        return Tensor(name, datatype, tuple(shape), data)
    size = 2 if datatype == "BF16" else struct.calcsize(f"<{_LETTERS[datatype]}")
    if len(raw) != count * size:
        raise BadTensor(f"shape {list(shape)} of {datatype} does not fit {len(raw)} bytes")
    if datatype == "BF16":
        raw = b"".join(b"\0\0" + raw[i : i + 2] for i in range(0, len(raw), 2))
    letter = _LETTERS.get(datatype, "f")
    return Tensor(name, datatype, tuple(shape), list(struct.unpack(f"<{count}{letter}", raw)))


def _unpacked(raw: bytes) -> list[Any]:
    """The elements of a BYTES tensor: each has its length before it."""
    found, at = list[Any](), 0
    while at < len(raw):
        end = at + 4
        length = struct.unpack_from("<I", raw, at)[0] if end <= len(raw) else len(raw)
        if end + length > len(raw):
            raise BadTensor(f"the bytes end within element {len(found)}")
        found.append(raw[end : end + length].decode(errors="replace"))
        at = end + length
    return found
