"""The messages of the Open Inference Protocol that a prediction needs.

Made here of protobuf's own descriptors, for the packages that bring them generated also bring
their model servers. Field names and numbers are those of
https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/open_inference_grpc.proto
"""

from __future__ import annotations

import functools
from typing import Any

from kfp_pytorch.launcher.kserve.predict import grpc_packages

# Each field: number, name, type; a star for a repeated one. On the wire a map is a list of entries,
# and a oneof is its fields; the tensors of requests and answers have the same ones.
_MESSAGES = {
    "Parameter": "1 bool_param bool, 2 int64_param int64, 3 string_param string",
    "Entry": "1 key string, 2 value Parameter",
    "Contents": (
        "1 bool_contents *bool, 2 int_contents *int32, 3 int64_contents *int64, "
        "4 uint_contents *uint32, 5 uint64_contents *uint64, 6 fp32_contents *float, "
        "7 fp64_contents *double, 8 bytes_contents *bytes"
    ),
    "Tensor": (
        "1 name string, 2 datatype string, 3 shape *int64, 4 parameters *Entry, 5 contents Contents"
    ),
    "RequestedOutput": "1 name string, 2 parameters *Entry",
    "ModelInferRequest": (
        "1 model_name string, 2 model_version string, 3 id string, 4 parameters *Entry, "
        "5 inputs *Tensor, 6 outputs *RequestedOutput, 7 raw_input_contents *bytes"
    ),
    "ModelInferResponse": (
        "1 model_name string, 2 model_version string, 3 id string, 4 parameters *Entry, "
        "5 outputs *Tensor, 6 raw_output_contents *bytes"
    ),
}
_PACKAGE = "inference"


def new(name: str) -> Any:
    """Return an empty message of a name. Raises StepError: there is no protobuf."""
    return _classes()[name]()


def parse(name: str, data: bytes) -> Any | None:
    """Return the message in bytes; None where they are none."""
    message = new(name)
    try:
        message.ParseFromString(data)
    except grpc_packages.protobuf().message.DecodeError:
        return None
    return message


@functools.cache
def _classes() -> dict[str, Any]:
    protobuf = grpc_packages.protobuf()
    # A pool of its own: kserve's messages have the same names in the usual one.
    pool = protobuf.descriptor_pool.DescriptorPool()
    file = protobuf.descriptor_pb2.FileDescriptorProto(name="inference.proto", package=_PACKAGE)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for words in fields.split(", "):
            _add_field(message, *words.split())
    pool.Add(file)
    found = {name: pool.FindMessageTypeByName(f"{_PACKAGE}.{name}") for name in _MESSAGES}
    return {name: protobuf.message_factory.GetMessageClass(each) for name, each in found.items()}


def _add_field(message: Any, number: str, name: str, kind: str) -> None:
    field = message.field.add(name=name, number=int(number))
    word = kind.lstrip("*")
    field.label = field.LABEL_REPEATED if kind != word else field.LABEL_OPTIONAL
    if word in _MESSAGES:
        field.type, field.type_name = field.TYPE_MESSAGE, f".{_PACKAGE}.{word}"
        return
    field.type = getattr(field, f"TYPE_{word.upper()}")
    if kind != word and word not in ("string", "bytes"):
        field.options.packed = True
