"""The HTTP server: KServe's, with what it lacks.

KServe's server has no limit on a body, answers 422 or 500 to some bad requests, logs a traceback
for each, lets anyone unload the model, and always listens on all interfaces.
"""

# `import kserve` parses sys.argv: nothing but the predictor's own process may import this.
from __future__ import annotations

import asyncio
import logging
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from kserve import InferOutput, InferRequest, InferResponse, Model
from kserve.errors import InvalidInput, ModelNotFound
from kserve.logging import configure_logging
from kserve.model_repository import ModelRepository
from kserve.model_server import app
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.model_repository_extension import ModelRepositoryExtension
from kserve.protocol.rest.server import RESTServer
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kfp_pytorch.serving.binary_head import JSON, check_head
from kfp_pytorch.serving.export import TensorSpec
from kfp_pytorch.serving.predictor import Answers, Predictor
from kfp_pytorch.serving.tensors import Array, BadRequest, from_flat

# Requests that wait for the model's thread; more are told to come back.
MAX_WAITING = 256
# Largest bodies that are read and answered at once. Of small numbers in JSON each of 32 MiB takes
# 550 MiB (measured): more would not fit the memory that the runtime gives.
LARGEST_AT_ONCE = 4
DRAIN_SECONDS = 20
# For an answer before the body was read: what follows of it makes the connection useless.
UNREAD = {"connection": "close"}
RETRY = {"retry-after": "1"}
REPOSITORY_PATH = "/v2/repository/"
# Each logs a line a request, which costs a third of the throughput (measured).
QUIET_LOGGERS = ("kserve.trace", "uvicorn.access")

logger = logging.getLogger("kserve")


class TooBusy(Exception):
    """Too many requests wait for the model."""


class ExportedModel(Model):  # type: ignore[misc]
    """A predictor as KServe's server wants it."""

    def __init__(self, name: str, predictor: Predictor) -> None:
        super().__init__(name)
        self._predictor = predictor
        self._waiting = 0
        # One thread: torch uses the CPUs within it, and the event loop stays free for probes.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
        self.ready = True

    def validate(self, payload: Any) -> Any:
        """Leaves all checks to `predict`, whose messages name the field."""
        return payload

    async def predict(self, payload: Any, headers: dict[str, str] | None = None) -> Any:
        """Answers a V1 body or a V2 request in the model's thread."""
        if self._waiting >= MAX_WAITING:
            raise TooBusy(f"{MAX_WAITING} requests wait for the model; try again later")
        answer = self._answer_v2 if isinstance(payload, InferRequest) else self._answer_v1
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, answer, payload, headers or {}
            )
        finally:
            self._waiting -= 1

    def get_input_types(self) -> list[dict[str, Any]]:
        """The input tensors, for the metadata endpoint."""
        return [_metadata(self._predictor.export.input)]

    def get_output_types(self) -> list[dict[str, Any]]:
        """The output tensors, for the metadata endpoint."""
        own = [_metadata(self._predictor.export.output)]
        if not self._predictor.export.classes:
            return own
        names = (("class", "INT64"), ("label", "BYTES"), ("score", "FP32"))
        return [{"name": n, "datatype": t, "shape": [-1]} for n, t in names] + own

    def _answer_v1(self, payload: Any, headers: dict[str, str]) -> dict[str, Any]:
        if isinstance(payload, bytes):
            found = headers.get("content-type", "none")
            raise BadRequest(f"content-type: must be {JSON}, not {found}")
        return self._predictor.answer_v1(payload)

    def _answer_v2(self, request: Any, headers: dict[str, str]) -> Any:  # noqa: ARG002
        rows = _rows(request, self._predictor.export.input)
        answers = self._predictor.answer(rows)
        for each in request.request_outputs or []:
            # KServe forgets what was asked for all where one that is asked for says nothing.
            each.parameters = {"binary_data": request.use_binary_outputs} | (each.parameters or {})
        return InferResponse(
            response_id=request.id or str(uuid.uuid4()),
            model_name=self.name,
            infer_outputs=_outputs(self._predictor, answers, request),
            use_binary_outputs=request.use_binary_outputs,
            requested_outputs=request.request_outputs,
        )


def _metadata(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def _rows(request: Any, spec: TensorSpec) -> Array:
    names = [tensor.name for tensor in request.inputs]
    if names != [spec.name]:
        raise BadRequest(f"inputs: the model takes one input named {spec.name!r}, not {names}")
    tensor = request.inputs[0]
    return from_flat(tensor.data, tensor.shape, tensor.datatype, spec, "inputs[0]")


def _outputs(predictor: Predictor, answers: Answers, request: Any) -> list[Any]:
    named = predictor.outputs(answers)
    if request.request_outputs:
        wanted = [output.name for output in request.request_outputs]
    else:
        # The model's own output says nothing more to those who want a class.
        wanted = ["class", "label", "score"] if answers.classes is not None else list(named)
    unknown = [name for name in wanted if name not in named]
    if unknown:
        raise BadRequest(f"outputs: {unknown} are none of {list(named)}")
    outputs = []
    for name in wanted:
        datatype, values = named[name]
        output = InferOutput(name, list(values.shape), datatype)
        output.set_data_from_numpy(values, binary_data=False)
        outputs.append(output)
    return outputs


class CheckedDataPlane(DataPlane):  # type: ignore[misc]
    """KServe's, but a body that cannot be decoded is the client's fault."""

    def decode(
        self, body: Any, headers: dict[str, str], *args: Any, **kwargs: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Decodes a body.

        Raises:
            BadRequest: It cannot be decoded.
        """
        if headers.get("content-type", "").partition(";")[0].strip().lower() == JSON:
            headers = {**headers, "content-type": JSON}
        try:
            return super().decode(body, headers, *args, **kwargs)  # type: ignore[no-any-return]
        except (BadRequest, MemoryError):
            raise
        except InvalidInput as error:
            raise BadRequest(f"body: {error.reason}") from error
        except KeyError as error:
            raise BadRequest(f"body: the field {error} is missing") from error
        except Exception as error:
            raise BadRequest(f"body: {type(error).__name__}: {error}") from error

    def decode_inference_request(
        self, body: Any, headers: dict[str, str], model_name: str
    ) -> InferRequest:
        """Decodes a V2 body, whose head KServe reads without looking at it where it is bytes.

        Raises:
            BadRequest: It is bytes that do not start with a V2 request.
        """
        if isinstance(body, bytes):
            check_head(body, headers)
        return super().decode_inference_request(body, headers, model_name)


class BodyLimit:
    """Refuses the paths that load models, and bodies that are compressed, too large or too many."""

    def __init__(self, application: ASGIApp, limit: int) -> None:
        self._application = application
        self._limit = limit
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection event of ASGI."""
        if scope["type"] != "http":
            return await self._application(scope, receive, send)
        if scope["path"].startswith(REPOSITORY_PATH):
            refusal = JSONResponse({"error": "models are loaded at the server's start only"}, 404)
            return await refusal(scope, receive, send)
        headers = dict(scope["headers"])
        coding = headers.get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
        if coding != "identity":
            return await _compressed(coding)(scope, receive, send)
        if int(headers.get(b"content-length", 0)) > self._limit:
            return await _too_large(self._limit)(scope, receive, send)
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            size = len(message.get("body", b""))
            received += size
            self._held += size
            if received > self._limit:
                raise HTTPException(413, _too_large_message(self._limit))
            if self._held > LARGEST_AT_ONCE * self._limit:
                why = f"requests of {self._held} bytes are being answered; try again later"
                raise HTTPException(503, why, RETRY)
            return message

        try:
            return await self._application(scope, limited, send)
        finally:
            self._held -= received


class Drain:
    """Answers what the time to drain was too short for, which uvicorn cancels with a traceback."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection event of ASGI."""
        answering = False

        async def noted(message: Message) -> None:
            nonlocal answering
            answering = True
            await send(message)

        try:
            await self._application(scope, receive, noted)
        except asyncio.CancelledError:
            if scope["type"] != "http":
                raise
            if not answering:
                await _stopping()(scope, receive, send)


def _stopping() -> JSONResponse:
    message = f"the predictor is stopping, and {DRAIN_SECONDS} s were too short; try again"
    return JSONResponse({"error": message}, 503, UNREAD | RETRY)


def _too_large_message(limit: int) -> str:
    return f"body: larger than {limit} bytes; send fewer instances in a request"


def _too_large(limit: int) -> JSONResponse:
    return JSONResponse({"error": _too_large_message(limit)}, 413, UNREAD)


def _compressed(coding: str) -> JSONResponse:
    message = f"content-encoding: {coding!r} is not read; send the body as it is"
    return JSONResponse({"error": message}, 415, UNREAD | {"accept-encoding": "identity"})


async def _bad_request(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 400)


async def _too_busy(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 503, RETRY)


async def _memory_full(_: Request, error: Exception) -> JSONResponse:
    logger.warning("memory is full: %s", error)
    reason = "the predictor's memory is full; send fewer instances in a request, or try again later"
    return JSONResponse({"error": reason}, 503, RETRY)


async def _http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 - for the type checker
    # FastAPI says of a body that is no text only that there was an error.
    unread = error.status_code == 400 and error.__cause__ is not None
    reason = f"body: not JSON: {error.__cause__}" if unread else error.detail
    return JSONResponse({"error": reason}, error.status_code, error.headers)


async def _invalid_v2(_: Request, error: Exception) -> JSONResponse:
    """Names the field that the V2 request's own checks refused."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - for the type checker
    # The body may also be bytes; what is wrong with it as bytes helps nobody.
    reasons = [e for e in error.errors() if "bytes" not in e["loc"]] or list(error.errors())
    if reasons[0]["type"] == "json_invalid":
        return JSONResponse({"error": f"body: not JSON: {reasons[0]['ctx']['error']}"}, 400)
    place = ".".join(str(part) for part in reasons[0]["loc"] if part != "InferenceRequest")
    return JSONResponse({"error": f"{place}: {reasons[0]['msg']}"}, 400)


def _without_traceback(record: logging.LogRecord) -> bool:
    """Logs a request for what is not here as one line; KServe logs a traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, ModelNotFound | NotImplementedError):
        record.msg, record.exc_info = str(error), None
    return True


def harden(application: FastAPI, limit: int) -> None:
    """Adds the body limit and the answers to bad requests to KServe's application.

    Args:
        application: KServe's application.
        limit: The largest body, in bytes.
    """
    application.add_middleware(BodyLimit, limit=limit)
    application.add_middleware(Drain)
    application.add_exception_handler(BadRequest, _bad_request)
    # Nobody reads this answer; without it a client that goes away is logged as the server's fault.
    application.add_exception_handler(ClientDisconnect, _bad_request)
    application.add_exception_handler(TooBusy, _too_busy)
    application.add_exception_handler(MemoryError, _memory_full)
    application.add_exception_handler(RequestValidationError, _invalid_v2)
    application.add_exception_handler(HTTPException, _http_error)


def serve(name: str, predictor: Predictor, host: str, port: int, body_limit: int) -> None:
    """Serves until a signal, then answers what is in flight.

    Args:
        name: The model's name in the URL.
        predictor: A predictor that was warmed up.
        host: The address to listen on.
        port: The port to listen on.
        body_limit: The largest body of a request, in bytes.
    """
    configure_logging()
    for quiet in QUIET_LOGGERS:
        logging.getLogger(quiet).setLevel(logging.WARNING)
    logger.addFilter(_without_traceback)
    models = ModelRepository()
    models.update(ExportedModel(name, predictor))
    harden(app, body_limit)
    server = RESTServer(
        "kserve.model_server:app",
        CheckedDataPlane(model_registry=models),
        ModelRepositoryExtension(model_registry=models),
        port,
        grace_period=DRAIN_SECONDS,
    )
    # kserve.ModelServer would listen on 0.0.0.0 whatever it is told.
    server.config.host = host
    logger.info("model %s from %s on %s:%s", name, predictor.export.directory, host, port)
    asyncio.run(server.start())
