"""Version 2, the Open Inference Protocol, over HTTP: JSON, or JSON and then tensors as bytes."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from kfp_pytorch.serving import images
from kfp_pytorch.serving.errors import BadRequest
from kfp_pytorch.serving.export import Export, TensorSpec
from kfp_pytorch.serving.predictor import Answers
from kfp_pytorch.serving.protocol.query import Query, top_of
from kfp_pytorch.serving.protocol.v1 import parsed
from kfp_pytorch.serving.tensors import Array, from_bytes, from_flat

JSON = "application/json"
BINARY = "application/octet-stream"
HEAD_LENGTH = "inference-header-content-length"
SIZE = "binary_data_size"
CLASSIFIED = {"class": "INT64", "label": "BYTES", "score": "FP32"}


def read(body: bytes, headers: Mapping[str, str], export: Export) -> Query:
    """Reads a body; the names of the headers are in small letters. Raises BadRequest."""
    content_type = headers.get("content-type", "")
    if HEAD_LENGTH in headers:
        length = _head_length(body, headers[HEAD_LENGTH])
        head, rest = body[:length], memoryview(body)[length:]
    elif content_type.partition(";")[0].strip().lower() == JSON:
        head, rest = body, memoryview(b"")
    else:
        raise BadRequest(
            f'body: must be a JSON object with "inputs" and the content-type {JSON} (found: '
            f"{content_type or 'none'}), or binary tensors with the header {HEAD_LENGTH}"
        )
    request = parsed(head)
    if not isinstance(request, dict):
        raise BadRequest('body: must be a JSON object with "inputs": [...]')
    given = _only_input(request, export.input.name)
    parameters = _parameters(request, "parameters")
    booleans = b"true" in head or b"false" in head
    return Query(
        parts=_rows(given, rest, export, booleans),
        top=top_of(parameters, export),
        id=_id(request),
        outputs=_asked_for(request, bool(parameters.get("binary_data_output")), export),
        is_binary=bool(parameters.get("binary_data_output")),
    )


def _head_length(body: bytes, stated: str) -> int:
    length = stated.strip()
    # Python reads no more than 4,300 digits.
    is_number = length.isascii() and length.isdecimal() and len(length) < 20
    if not is_number or int(length) > len(body):
        raise BadRequest(
            f"{HEAD_LENGTH}: {length!r:.40} is not the length of the JSON that a body of "
            f"{len(body)} bytes starts with"
        )
    return int(length)


def _id(request: dict[str, Any]) -> str:
    name = request.get("id")
    if not isinstance(name, str | None):
        raise BadRequest(f"id: {name!r} is no string")
    return name or ""


def _only_input(request: dict[str, Any], name: str) -> dict[str, Any]:
    inputs = request.get("inputs")
    if not isinstance(inputs, list) or not all(isinstance(each, dict) for each in inputs):
        raise BadRequest("inputs: must be a list of tensors")
    check_names([each.get("name") for each in inputs], name)
    given: dict[str, Any] = inputs[0]
    shape = given.get("shape")
    if not isinstance(shape, list) or not all(type(size) is int for size in shape):
        raise BadRequest(f"inputs[0].shape: must be a list of whole numbers, not {shape!r:.80}")
    if not isinstance(given.get("datatype"), str):
        raise BadRequest(f"inputs[0].datatype: must be a string, not {given.get('datatype')!r:.80}")
    return given


def check_names(names: Sequence[Any], name: str) -> None:
    """Compares the names of a request's inputs with the model's one. Raises BadRequest."""
    if list(names) != [name]:
        raise BadRequest(f"inputs: the model takes one input named {name!r}, not {names!r:.200}")


def _parameters(holder: dict[str, Any], field: str) -> dict[str, Any]:
    parameters = holder.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise BadRequest(f"{field}: must be an object")
    return parameters or {}


def _rows(given: dict[str, Any], rest: memoryview, export: Export, booleans: bool) -> list[Array]:
    size = _parameters(given, "inputs[0].parameters").get(SIZE)
    shape, datatype, spec = given["shape"], given["datatype"], export.input
    if size is None:
        if rest:
            raise BadRequest(f"inputs: {SIZE} states 0 bytes, and {len(rest)} follow")
        data = given.get("data")
        if datatype == "BYTES":
            return images.from_files(_texts(data, shape), export, "inputs[0].data")
        if datatype == "FP16":
            raise BadRequest("inputs[0].datatype: FP16 comes as bytes only, not in JSON")
        return [from_flat(data, shape, datatype, spec, "inputs[0]", booleans)]
    if type(size) is not int or size < 0:
        raise BadRequest(f"inputs[0].parameters.{SIZE}: {size!r} is no number of bytes")
    if size != len(rest):
        raise BadRequest(f"inputs: {SIZE} states {size} bytes, and {len(rest)} follow")
    if given.get("data") is not None:
        raise BadRequest("inputs[0].data: there is data in JSON, and bytes of it")
    if datatype == "BYTES":
        return images.from_files(unpacked(rest, shape), export, "inputs[0]")
    return [from_bytes(rest, shape, datatype, spec, "inputs[0]")]


def _texts(data: Any, shape: list[int]) -> list[str]:
    if not isinstance(data, list) or not all(isinstance(each, str) for each in data):
        raise BadRequest("inputs[0].data: BYTES in JSON are a list of strings, base64 of images")
    check_count(len(data), shape)
    return data


def check_count(count: int, shape: Sequence[int]) -> None:
    """Compares the number of files with the shape of their tensor. Raises BadRequest."""
    if list(shape) not in ([count], [count, 1]) or not count:
        raise BadRequest(f"inputs[0].shape: {list(shape)} is not [{count}], and there is {count}")


def unpacked(data: memoryview | bytes, shape: Sequence[int]) -> list[bytes]:
    """The elements of a BYTES tensor: each has its length before it. Raises BadRequest."""
    found, at = list[bytes](), 0
    while at < len(data):
        end = at + 4
        length = struct.unpack_from("<I", data, at)[0] if end <= len(data) else len(data)
        if end + length > len(data):
            raise BadRequest(f"inputs[0]: the bytes end within element {len(found)}")
        found.append(bytes(data[end : end + length]))
        at = end + length
    check_count(len(found), shape)
    return found


def packed(values: Array) -> bytes:
    """The bytes of a BYTES tensor."""
    encoded = [str(value).encode() for value in values.flat]
    return b"".join(struct.pack("<I", len(each)) + each for each in encoded)


def _asked_for(request: dict[str, Any], is_binary: bool, export: Export) -> list[tuple[str, bool]]:
    outputs = request.get("outputs")
    if outputs is None:
        return []
    if not isinstance(outputs, list) or not all(isinstance(each, dict) for each in outputs):
        raise BadRequest("outputs: must be a list of objects with a name")
    found = []
    for index, each in enumerate(outputs):
        own = _parameters(each, f"outputs[{index}].parameters").get("binary_data", is_binary)
        found.append((each.get("name"), bool(own)))
    check_outputs([name for name, _ in found], export)
    return found


def check_outputs(names: Sequence[Any], export: Export) -> None:
    """Finds what the model does not answer with, or not so often. Raises BadRequest."""
    if not names:
        return
    known = [spec.name for spec in outputs(export)]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadRequest(f"outputs: {unknown!r:.200} are none of {known}")
    if len(set(names)) < len(names):
        raise BadRequest(f"outputs: {names!r:.200} has one of them twice")


def outputs(export: Export) -> list[TensorSpec]:
    """What the model can be asked for: what it is sure of, of a classifier, and its own output."""
    classified = CLASSIFIED if export.classes else {}
    specs = [TensorSpec(name, (-1,), datatype) for name, datatype in classified.items()]
    return [*specs, export.output]


def tensors(answers: Answers, export: Export, query: Query) -> list[tuple[TensorSpec, Array, bool]]:
    """The tensors that a request asked for: what they are, their values, whether as bytes."""
    datatypes = CLASSIFIED if export.classes else {}
    # The model's own output adds nothing to a class, its label and its score.
    usual = [(name, query.is_binary) for name in datatypes or [export.output.name]]
    found = []
    for name, is_binary in query.outputs or usual:
        values = _values(name, answers, export, query.top)
        datatype = datatypes.get(name, export.output.datatype)
        found.append((TensorSpec(name, values.shape, datatype), values, is_binary))
    return found


def _values(name: str, answers: Answers, export: Export, top: int) -> Array:
    if name == export.output.name or answers.classes is None or answers.scores is None:
        return answers.output
    wanted = 0 if top == 1 else slice(top)
    classes = answers.classes[:, wanted]
    if name == "class":
        return classes
    if name == "score":
        return answers.scores[:, wanted]
    labels = [export.classes[index] for index in classes.flat]
    return np.array(labels, dtype=np.object_).reshape(classes.shape)


def write(
    answers: Answers, export: Export, query: Query, model_name: str
) -> tuple[bytes, dict[str, str]]:
    """The body of an answer, and its headers."""
    described, raw = [], []
    for spec, values, is_binary in tensors(answers, export, query):
        tensor: dict[str, Any] = {
            "name": spec.name,
            "shape": spec.shape,
            "datatype": spec.datatype,
        }
        if is_binary:
            is_text = spec.datatype == "BYTES"
            raw.append(packed(values) if is_text else np.ascontiguousarray(values).tobytes())
            tensor["parameters"] = {SIZE: len(raw[-1])}
        elif spec.datatype == "BYTES":
            tensor["data"] = values.ravel().tolist()
        else:
            tensor["data"] = np.ascontiguousarray(values).ravel()
        described.append(tensor)
    head = orjson.dumps(
        {"id": query.id or new_id(), "model_name": model_name, "outputs": described},
        option=orjson.OPT_SERIALIZE_NUMPY,
    )
    if not raw:
        return head, {"content-type": JSON}
    return b"".join([head, *raw]), {"content-type": BINARY, HEAD_LENGTH: str(len(head))}


def new_id() -> str:
    """A name for a request that has none."""
    return str(uuid.uuid4())


def metadata(export: Export) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The tensors that the model takes and gives, for the metadata endpoints."""

    def described(spec: TensorSpec) -> dict[str, Any]:
        return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}

    return [described(export.input)], [described(spec) for spec in outputs(export)]
