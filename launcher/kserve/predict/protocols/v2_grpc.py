"""Version 2, the Open Inference Protocol, over gRPC: tensors as bytes.

https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_grpc.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kfp_pytorch.launcher.kserve.predict.exchange import Request, WrongAnswers
from kfp_pytorch.launcher.kserve.predict.protocols import grpc_messages as messages
from kfp_pytorch.launcher.kserve.predict.protocols.tensors import (
    BadTensor,
    Tensor,
    checked,
    from_bytes,
    to_bytes,
)
from kfp_pytorch.launcher.kserve.predict.protocols.v2 import complete

METHOD = "/inference.GRPCInferenceService/ModelInfer"
# The field of a tensor's contents for each datatype; what has none comes as bytes only.
_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def build(body: Mapping[str, Any], model_name: str) -> Request:
    """Make a request of what REST's JSON would be. Raises BadTensor."""
    sent = [
        checked(each["name"], *(each[field] for field in ("datatype", "shape", "data")))
        for each in body["inputs"]
    ]
    message = messages.new("ModelInferRequest")
    message.model_name = model_name
    message.id = str(body.get("id", ""))
    _set_parameters(message, body)
    for given, tensor in zip(body["inputs"], sent, strict=True):
        added = message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        _set_parameters(added, given)
    for given in body.get("outputs", ()):
        _set_parameters(message.outputs.add(name=given["name"]), given)
    message.raw_input_contents.extend(map(to_bytes, sent))
    return Request(message.SerializeToString(), METHOD)


def _set_parameters(message: Any, given: Mapping[str, Any]) -> None:
    for name, value in (given.get("parameters") or {}).items():
        kind = {bool: "bool_param", int: "int64_param"}.get(type(value), "string_param")
        entry = message.parameters.add(key=name)
        setattr(entry.value, kind, value if kind != "string_param" else str(value))


def read(body: bytes, wanted: Sequence[str] = ()) -> list[Tensor]:
    """Return the tensors of an answer, checked. `wanted`: outputs that must be there.

    Raises WrongAnswers.
    """
    message = messages.parse("ModelInferResponse", body)
    if message is None:
        raise WrongAnswers("The answer is no message of the Open Inference Protocol.")
    raw = list(message.raw_output_contents)
    if raw and len(raw) != len(message.outputs):
        raise WrongAnswers(
            f"The answer has {len(message.outputs)} outputs, but the bytes of {len(raw)}."
        )
    found = []
    for i, each in enumerate(message.outputs):
        if not each.name:
            raise WrongAnswers(f"outputs[{i}] of the answer has no name.")
        try:
            found.append(_tensor(each, raw[i] if raw else None))
        except BadTensor as error:
            raise WrongAnswers(f"outputs[{i}] of the answer, {each.name!r}: {error}.") from None
    return complete(found, wanted)


def _tensor(given: Any, raw: bytes | None) -> Tensor:
    shape = list(given.shape)
    if raw is not None:
        return from_bytes(given.name, given.datatype, shape, raw)
    data = list(getattr(given.contents, _CONTENTS.get(given.datatype, "bytes_contents")))
    texts = [each.decode(errors="replace") if isinstance(each, bytes) else each for each in data]
    return checked(given.name, given.datatype, shape, texts)
