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
from grpc import aio
from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages
from kserve.protocol.grpc import grpc_predict_v2_pb2_grpc as services

from kfp_pytorch import __version__
from kfp_pytorch.serving import images
from kfp_pytorch.serving.errors import BadRequest, refusal
from kfp_pytorch.serving.export import Export
from kfp_pytorch.serving.predictor import Answers
from kfp_pytorch.serving.protocol import v2
from kfp_pytorch.serving.protocol.query import Query, top_of
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
    services.add_GRPCInferenceServiceServicer_to_server(Servicer(service), made)
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

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answers a request."""
        service, began, status = self._service, time.perf_counter(), "OK"
        size = request.ByteSize()
        try:
            service.hold(size)
            service.check_name(request.model_name)
            deadline = service.deadline(context.time_remaining())
            query, answers = await service.answer(
                size, partial(_read, request, service.export), deadline
            )
            return _write(answers, service.export, query, request)
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


def _read(request: Any, export: Export) -> Query:
    v2.check_names([each.name for each in request.inputs], export.input.name)
    given = request.inputs[0]
    parameters = _plain(request.parameters)
    names = [each.name for each in request.outputs]
    v2.check_outputs(names, export)
    is_raw = len(request.raw_input_contents) > 0
    # A type that has no field of contents comes as bytes, and so does all else then.
    as_bytes = is_raw or export.output.datatype not in _CONTENTS
    return Query(
        parts=_raw_rows(request, given, export) if is_raw else _rows(given, export),
        top=top_of(parameters, export),
        id=request.id,
        outputs=[(name, as_bytes) for name in names],
        is_binary=as_bytes,
    )


def _raw_rows(request: Any, given: Any, export: Export) -> list[Array]:
    contents = request.raw_input_contents
    if len(contents) != 1:
        raise BadRequest(f"raw_input_contents: there are {len(contents)}, of one input")
    if given.HasField("contents"):
        raise BadRequest("inputs[0].contents: there are also raw_input_contents")
    shape = list(given.shape)
    if given.datatype == "BYTES":
        return images.from_files(v2.unpacked(contents[0], shape), export, "inputs[0]")
    return [from_bytes(contents[0], shape, given.datatype, export.input, "inputs[0]")]


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


def _write(answers: Answers, export: Export, query: Query, request: Any) -> Any:
    outputs, raw = [], []
    for spec, values, is_raw in v2.tensors(answers, export, query):
        tensor = messages.ModelInferResponse.InferOutputTensor(
            name=spec.name, shape=spec.shape, datatype=spec.datatype
        )
        is_text = spec.datatype == "BYTES"
        if is_raw:
            raw.append(v2.packed(values) if is_text else np.ascontiguousarray(values).tobytes())
        else:
            numbers = [str(v).encode() for v in values.flat] if is_text else values.ravel()
            getattr(tensor.contents, _CONTENTS[spec.datatype]).extend(numbers)
        outputs.append(tensor)
    return messages.ModelInferResponse(
        model_name=request.model_name,
        id=query.id or v2.new_id(),
        outputs=outputs,
        raw_output_contents=raw,
    )
