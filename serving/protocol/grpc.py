"""Version 2, the Open Inference Protocol, over gRPC."""

# `import kserve` parses sys.argv: nothing but the predictor's own process may import this.
from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from grpc import aio
from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages
from kserve.protocol.grpc import grpc_predict_v2_pb2_grpc as services

from kfp_pytorch import __version__
from kfp_pytorch.serving import images
from kfp_pytorch.serving.errors import BadRequest, refusal
from kfp_pytorch.serving.export import Export
from kfp_pytorch.serving.predictor import Answers
from kfp_pytorch.serving.protocol import v2
from kfp_pytorch.serving.protocol.query import Query, size_of, top_of
from kfp_pytorch.serving.service import Service
from kfp_pytorch.serving.tensors import Array, check_tensor, from_bytes, from_numbers

# The field of a tensor's contents for each type; FP16 has none.
_CONTENTS = {
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "UINT64": "uint64_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
# Of ModelInferRequest: the number of its raw_input_contents, and how all its fields are encoded.
_RAW = messages.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_WITH_LENGTH = 2
_MOST_FIELDS = 1000
# As gRPC's clients know when to try again.
_PUSHBACK = (("grpc-retry-pushback-ms", "1000"),)


def server(service: Service, address: str) -> aio.Server:
    """Makes a server at an address, not yet started. Raises OSError: the address is taken."""
    most = service.settings.max_body
    made = aio.server(
        options=[
            ("grpc.max_receive_message_length", most),
            ("grpc.max_send_message_length", -1),
            # Several workers listen at one port.
            ("grpc.so_reuseport", 1),
        ]
    )
    servicer = Servicer(service)
    services.add_GRPCInferenceServiceServicer_to_server(servicer, made)
    infer = grpc.unary_unary_rpc_method_handler(
        servicer.ModelInfer, response_serializer=messages.ModelInferResponse.SerializeToString
    )
    name = messages.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
    # In place of the generated one: a request is bytes.
    made.add_registered_method_handlers(name, {"ModelInfer": infer})
    try:
        made.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(str(error)) from error
    return made


class Servicer(services.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """The calls of the protocol. Their names are the protocol's."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802
        """Whether the server answers."""
        return messages.ServerLiveResponse(live=self._service.predictor.is_live)

    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802
        """Whether requests should be sent here."""
        return messages.ServerReadyResponse(ready=self._service.is_ready)

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Whether requests of this model should be sent here."""
        await self._check_name(request.name, context)
        return messages.ModelReadyResponse(ready=self._service.is_ready)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802
        """What the server is."""
        return messages.ServerMetadataResponse(name="kfp-pytorch", version=__version__)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The model's tensors."""
        await self._check_name(request.name, context)
        inputs, outputs = v2.metadata(self._service.export)
        return messages.ModelMetadataResponse(name=request.name, inputs=inputs, outputs=outputs)

    async def ModelInfer(self, request: bytes, context: Any) -> Any:  # noqa: N802
        """Answers a request, which is not parsed yet."""
        service, began, status = self._service, time.perf_counter(), "OK"
        size = len(request)
        try:
            service.hold(size)
            deadline = service.deadline(context.time_remaining())
            query, answers = await service.answer(size, partial(_read, request, service), deadline)
            write = partial(_write, answers, service.export, query, service.name)
            return await service.off_loop(size_of(answers, query), write)
        except asyncio.CancelledError:
            status = "CANCELLED"
            raise
        except Exception as error:
            told = refusal(error)
            status = told.code
            trailing = _PUSHBACK if told.status == 503 else ()
            return await context.abort(grpc.StatusCode[told.code], told.reason, trailing)
        finally:
            service.release(size)
            service.recorder.request("grpc", status, time.perf_counter() - began)

    async def _check_name(self, name: str, context: Any) -> None:
        try:
            self._service.check_name(name)
        except Exception as error:
            told = refusal(error)
            await context.abort(grpc.StatusCode[told.code], told.reason)


def _read(request: bytes, service: Service) -> Query:
    message, raw = _parsed(request)
    service.check_name(message.model_name)
    export = service.export
    v2.check_names([each.name for each in message.inputs], export.input.name)
    given = message.inputs[0]
    parameters = _plain(message.parameters)
    names = [each.name for each in message.outputs]
    v2.check_outputs(names, export)
    # A type that has no field of contents comes as bytes, and so does all else then.
    as_bytes = bool(raw) or export.output.datatype not in _CONTENTS
    return Query(
        parts=_raw_rows(raw, given, export) if raw else _rows(given, export),
        top=top_of(parameters, export),
        id=message.id,
        outputs=[(name, as_bytes) for name in names],
        is_binary=as_bytes,
    )


def _parsed(request: bytes) -> tuple[Any, list[memoryview]]:
    """A ModelInferRequest without its raw contents, and these. Raises BadRequest.

    protobuf would copy the raw contents twice, which takes as long as receiving them.
    """
    head, raw = bytearray(), list[memoryview]()
    view, at = memoryview(request), 0
    try:
        for _ in range(_MOST_FIELDS):
            begin = at
            tag, at = _number(view, at)
            length, at = _number(view, at)
            at += length
            if tag & 7 != _WITH_LENGTH or at > len(view):
                raise DecodeError(f"the field at byte {begin} is none, or is cut short")
            if tag >> 3 == _RAW:
                raw.append(view[at - length : at])
            else:
                head += view[begin:at]
            if at == len(view):
                return messages.ModelInferRequest.FromString(bytes(head)), raw
    except (IndexError, DecodeError) as error:
        raise BadRequest(f"the request is no ModelInferRequest: {error}") from error
    raise BadRequest(f"the request has more than {_MOST_FIELDS} fields")


def _number(view: memoryview, at: int) -> tuple[int, int]:
    """Reads a whole number of protobuf, 7 bits a byte, and where it ends."""
    value = 0
    for shift in range(0, 64, 7):
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise DecodeError("a number is too long")


def _raw_rows(raw: list[memoryview], given: Any, export: Export) -> list[Array]:
    if len(raw) != 1:
        raise BadRequest(f"raw_input_contents: there are {len(raw)}, of one input")
    if given.HasField("contents"):
        raise BadRequest("inputs[0].contents: there are also raw_input_contents")
    shape = list(given.shape)
    if given.datatype == "BYTES":
        return images.from_files(v2.unpacked(raw[0], shape), export, "inputs[0]")
    return [from_bytes(raw[0], shape, given.datatype, export.input, "inputs[0]")]


def _rows(given: Any, export: Export) -> list[Array]:
    field, shape = _CONTENTS.get(given.datatype), list(given.shape)
    if field is None:
        check_tensor(shape, given.datatype, export.input, "inputs[0]")
        raise BadRequest(f"inputs[0].datatype: {given.datatype} comes in raw_input_contents only")
    contents = getattr(given.contents, field)
    place = f"inputs[0].contents.{field}"
    if given.datatype == "BYTES":
        v2.check_count(len(contents), shape)
        return images.from_files(list(contents), export, place)
    return [from_numbers(np.array(contents), shape, given.datatype, export.input, place)]


def _plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {name: each.WhichOneof("parameter_choice") for name, each in parameters.items()}
    return {name: getattr(parameters[name], kind) for name, kind in kinds.items() if kind}


def _write(answers: Answers, export: Export, query: Query, name: str) -> Any:
    outputs, raw = [], []
    for spec, values, is_raw in v2.tensors(answers, export, query):
        tensor = messages.ModelInferResponse.InferOutputTensor(
            name=spec.name, shape=spec.shape, datatype=spec.datatype
        )
        is_text = spec.datatype == "BYTES"
        if is_raw:
            raw.append(v2.packed(values) if is_text else np.ascontiguousarray(values).tobytes())
        else:
            numbers = [str(v).encode() for v in values.flat] if is_text else values.ravel().tolist()
            getattr(tensor.contents, _CONTENTS[spec.datatype]).extend(numbers)
        outputs.append(tensor)
    return messages.ModelInferResponse(
        model_name=name,
        id=query.id or v2.new_id(),
        outputs=outputs,
        raw_output_contents=raw,
    )
