"""The HTTP server: KServe's, made stricter.

KServe's own has no limit on a body, answers 422 or 500 to some bad requests, logs a traceback for
each, lets any client unload the model, and always listens on all interfaces.
"""

# `import kserve` parses sys.argv: nothing but the predictor's own process may import this.
from __future__ import annotations

import asyncio
import logging
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kserve import InferOutput, InferRequest, InferResponse, Model
from kserve.errors import InvalidInput, ModelNotFound
from kserve.logging import configure_logging
from kserve.model_repository import ModelRepository
from kserve.model_server import app
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.model_repository_extension import ModelRepositoryExtension
from kserve.protocol.rest.server import RESTServer
from starlette.exceptions import HTTPException

from kfp_pytorch.serving.binary_head import JSON, check_head
from kfp_pytorch.serving.error_answers import add_error_answers
from kfp_pytorch.serving.export import TensorSpec
from kfp_pytorch.serving.middleware import DRAIN_SECONDS, RETRY, BodyLimit, Drain
from kfp_pytorch.serving.predictor import Answers, Predictor
from kfp_pytorch.serving.tensors import Array, BadRequest, from_flat

# Requests that wait for the model's thread; further ones are answered with 503.
MAX_WAITING = 256
# Each logs one line for each request, which costs a third of the throughput (measured).
QUIET_LOGGERS = ("kserve.trace", "uvicorn.access")

logger = logging.getLogger("kserve")


class ExportedModel(Model):  # type: ignore[misc]
    """A predictor as a model of KServe's server."""

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
            why = f"{MAX_WAITING} requests wait for the model; try again later"
            raise HTTPException(503, why, RETRY)
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
        _check_id(request.id)
        answers = self._predictor.answer(_rows(request, self._predictor.export.input))
        for each in request.request_outputs or []:
            # KServe ignores the request's own setting for an output that has no parameters.
            each.parameters = {"binary_data": request.use_binary_outputs} | (each.parameters or {})
        return InferResponse(
            response_id=request.id or str(uuid.uuid4()),
            model_name=self.name,
            infer_outputs=_outputs(self._predictor, answers, request),
            use_binary_outputs=request.use_binary_outputs,
            requested_outputs=request.request_outputs,
        )


def _check_id(request_id: str | None) -> None:
    try:
        (request_id or "").encode()
    except UnicodeEncodeError:
        raise BadRequest(f"id: {request_id!r} holds half of a surrogate pair") from None


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
    # The model's own output adds nothing to a class, its label and its score.
    usual = ["class", "label", "score"] if answers.classes is not None else list(named)
    wanted = [output.name for output in request.request_outputs or []] or usual
    unknown = [name for name in wanted if name not in named]
    if unknown:
        raise BadRequest(f"outputs: {unknown} are none of {list(named)}")
    outputs = []
    for name in wanted:
        datatype, values = named[name]
        outputs.append(InferOutput(name, list(values.shape), datatype))
        outputs[-1].set_data_from_numpy(values, binary_data=False)
    return outputs


class CheckedDataPlane(DataPlane):  # type: ignore[misc]
    """KServe's, but a body that cannot be decoded is the client's fault."""

    def decode(
        self, body: Any, headers: dict[str, str], *args: Any, **kwargs: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Decodes a body. Raises BadRequest: it cannot be decoded."""
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
        """Decodes a V2 body; where it is bytes, KServe reads its head without checks."""
        if isinstance(body, bytes):
            check_head(body, headers)
        return super().decode_inference_request(body, headers, model_name)


def _without_traceback(record: logging.LogRecord) -> bool:
    """Makes one line of a request for an unknown model; KServe logs a traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, ModelNotFound | NotImplementedError):
        record.msg, record.exc_info = str(error), None
    return True


def serve(name: str, predictor: Predictor, host: str, port: int, body_limit: int) -> None:
    """Serves until a signal, then answers what is in flight. `body_limit` is in bytes."""
    configure_logging()
    for quiet in QUIET_LOGGERS:
        logging.getLogger(quiet).setLevel(logging.WARNING)
    logger.addFilter(_without_traceback)
    models = ModelRepository()
    models.update(ExportedModel(name, predictor))
    app.add_middleware(BodyLimit, limit=body_limit)
    app.add_middleware(Drain)
    add_error_answers(app)
    server = RESTServer(
        "kserve.model_server:app",
        CheckedDataPlane(model_registry=models),
        ModelRepositoryExtension(model_registry=models),
        port,
        grace_period=DRAIN_SECONDS,
    )
    # kserve.ModelServer would always listen on 0.0.0.0.
    server.config.host = host
    logger.info("model %s from %s on %s:%s", name, predictor.export.directory, host, port)
    asyncio.run(server.start())
