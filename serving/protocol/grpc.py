"""Version 2, the Open Inference Protocol, over gRPC."""

# `import kserve` parses sys.argv: nothing but the predictor's own process may import this.
from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from grpc import aio
from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages

from kfp_pytorch import __version__
from kfp_pytorch.serving import images
from kfp_pytorch.serving.errors import BadRequest, Refusal, refusal
from kfp_pytorch.serving.export import Export
from kfp_pytorch.serving.predictor import Answers
from kfp_pytorch.serving.protocol import v2
from kfp_pytorch.serving.protocol.query import Query, size_of, top_of
from kfp_pytorch.serving.protocol.reading import Reading
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
# Until a connection without calls is closed, and one that does not begin as HTTP/2 does. Clients
# connect anew without an error.
_IDLE_MS = 300_000
_HANDSHAKE_MS = 30_000
# Until a call is told that it has ended.
_END_SECONDS = 0.05


def server(service: Service, address: str) -> aio.Server:
    """Makes a server at an address, not yet started. Raises OSError: the address is taken."""
    made = aio.server(
        options=[
            ("grpc.max_receive_message_length", service.settings.max_body),
            ("grpc.max_send_message_length", -1),
            # Several workers listen at one port.
            ("grpc.so_reuseport", 1),
            # What comes of a message before it is read does not grow with the network's speed.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.max_allowed_incoming_connections", service.settings.max_connections),
            ("grpc.max_connection_idle_ms", _IDLE_MS),
            ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
            ("grpc.http2.settings_timeout", _HANDSHAKE_MS),
        ]
    )
    servicer = Servicer(service)
    name = messages.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
    calls = {call.__name__: _handler(call) for call in servicer.calls}
    made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, calls),))
    # Each registered one is waited for on its own, which takes time: only the one that is frequent.
    made.add_registered_method_handlers(name, {"ModelInfer": calls["ModelInfer"]})
    try:
        made.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(str(error)) from error
    return made


def _handler(call: Callable[[Any, Any], Awaitable[Any]]) -> Any:
    """Handles a call of one message as if it had many: so it reads when it wants to, and bytes."""
    return grpc.stream_unary_rpc_method_handler(
        call, response_serializer=lambda response: response.SerializeToString()
    )


@dataclass
class _Call:
    """One call, and how it ended."""

    context: Any
    status: str = "OK"

    async def answer(self, work: Awaitable[Any]) -> Any:
        """The answer that is worked out, or what a client is told of an error in place of it."""
        # gRPC keeps the error that ends a call until Python looks for garbage. Neither it nor what
        # it comes from may hold the frames that have the message.
        try:
            return await work
        except asyncio.CancelledError:
            self.status = "CANCELLED"
            raise
        except aio.AbortError as error:
            raise error.with_traceback(None)  # noqa: B904
        except Exception as error:
            told = refusal(error)
        return await self._abort(told)

    async def stop(self, error: Exception) -> None:
        """Ends it though it is being read. Raises what gRPC raises then."""
        await self._abort(refusal(error))

    async def _abort(self, told: Refusal) -> None:
        self.status = told.code
        trailing = _PUSHBACK if told.status == 503 else ()
        await self.context.abort(grpc.StatusCode[told.code], told.reason, trailing)


class Servicer:
    """The calls of the protocol. Their names are the protocol's."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._reading = Reading(service.settings.max_body, service.settings.max_waiting)
        self.calls = (
            self.ServerLive,
            self.ServerReady,
            self.ModelReady,
            self.ServerMetadata,
            self.ModelMetadata,
            self.ModelInfer,
        )

    async def ServerLive(self, requests: Any, context: Any) -> Any:  # noqa: ARG002, N802
        """Whether the server answers. Its message says nothing, and is not read."""
        return messages.ServerLiveResponse(live=self._service.predictor.is_live)

    async def ServerReady(self, requests: Any, context: Any) -> Any:  # noqa: ARG002, N802
        """Whether requests should be sent here. Its message says nothing, and is not read."""
        return messages.ServerReadyResponse(ready=self._service.is_ready)

    async def ServerMetadata(self, requests: Any, context: Any) -> Any:  # noqa: ARG002, N802
        """What the server is. Its message says nothing, and is not read."""
        return messages.ServerMetadataResponse(name="kfp-pytorch", version=__version__)

    async def ModelReady(self, requests: Any, context: Any) -> Any:  # noqa: ARG002, N802
        """Whether requests of this model should be sent here."""
        call = _Call(context)
        await call.answer(self._check_name(call, messages.ModelReadyRequest))
        return messages.ModelReadyResponse(ready=self._service.is_ready)

    async def ModelMetadata(self, requests: Any, context: Any) -> Any:  # noqa: ARG002, N802
        """The model's tensors."""
        call = _Call(context)
        await call.answer(self._check_name(call, messages.ModelMetadataRequest))
        inputs, outputs = v2.metadata(self._service.export)
        name = self._service.name
        return messages.ModelMetadataResponse(name=name, inputs=inputs, outputs=outputs)

    async def ModelInfer(self, requests: Any, context: Any) -> Any:  # noqa: ARG002, N802
        """Answers a request, which is read and parsed here."""
        call, began = _Call(context), time.perf_counter()
        try:
            return await call.answer(self._infer(call))
        finally:
            seconds = time.perf_counter() - began
            self._service.recorder.request("grpc", call.status, seconds)

    async def _infer(self, call: _Call) -> Any:
        service, reading, size, expected = self._service, self._reading, 0, 0
        deadline = service.deadline(call.context.time_remaining())
        peer = call.context.peer()
        try:
            expected = await reading.expect(peer, deadline)
            request = await self._message(call, peer, deadline)
            size = len(request)
            reading.remember(peer, size)
            service.hold(size)
            query, answers = await service.answer(size, partial(_read, request, service), deadline)
            write = partial(_write, answers, service.export, query, service.name)
            return await service.off_loop(size_of(answers, query), write)
        finally:
            service.release(size)
            reading.expect_no_more(expected)

    async def _check_name(self, call: _Call, kind: Any) -> None:
        deadline = self._service.deadline(call.context.time_remaining())
        message = await self._message(call, "", deadline)
        self._service.check_name(_from_bytes(kind, message).name)

    async def _message(self, call: _Call, peer: str, deadline: float) -> bytes:
        """The message of a call. Raises BadRequest, Overloaded."""
        within = min(deadline, self._service.deadline(None))
        turn = await self._reading.begin(peer, within, call.stop)
        try:
            message: bytes = await call.context.read()
        finally:
            await self._reading.end(turn)
        # What may follow is not read, as in every call of one message: to ask for it takes time.
        if message is not aio.EOF:
            return message
        # A call that has ended has no message either: this one is cancelled then.
        await asyncio.sleep(_END_SECONDS)
        raise BadRequest("the call has no message")


def _from_bytes(kind: Any, content: bytes) -> Any:
    """A message of protobuf. Raises BadRequest."""
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise BadRequest(f"the request is no {kind.DESCRIPTOR.name}: {error}") from error


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
