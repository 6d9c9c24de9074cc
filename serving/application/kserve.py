"""KServe's application with this model, and with what it gets wrong put right."""

# `import kserve` parses sys.argv: nothing but the predictor's own process may import this.
from __future__ import annotations

import logging
from typing import Any

import orjson
from fastapi import FastAPI
from kserve import Model
from kserve.errors import ModelNotReady, ServerNotLive
from kserve.model_repository import ModelRepository
from kserve.model_server import app
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.model_repository_extension import ModelRepositoryExtension
from kserve.protocol.rest.server import RESTServer

from kfp_pytorch.serving.application import openapi
from kfp_pytorch.serving.application.error_answers import add_error_answers
from kfp_pytorch.serving.errors import BadRequest
from kfp_pytorch.serving.protocol import v1, v2
from kfp_pytorch.serving.service import Service

# Each logs one line for each request, which costs a third of the throughput (measured).
QUIET_LOGGERS = ("kserve.trace", "uvicorn.access")


def application(service: Service, port: int) -> FastAPI:
    """Makes the application; there can be one in a process."""
    for quiet in QUIET_LOGGERS:
        logging.getLogger(quiet).setLevel(logging.WARNING)
    logging.getLogger("kserve").addFilter(_without_traceback)
    models = ModelRepository()
    models.update(ExportedModel(service))
    dataplane = CheckedDataPlane(service, models)
    repository = ModelRepositoryExtension(model_registry=models)
    # It adds KServe's endpoints to its application; its server would listen on 0.0.0.0 only.
    RESTServer("kserve.model_server:app", dataplane, repository, port).create_application()
    # After KServe's own, some of which they replace.
    add_error_answers(app)
    made: FastAPI = app
    made.openapi_schema = openapi.document(made.openapi(), service.export, service.name)
    return made


class ExportedModel(Model):  # type: ignore[misc]
    """The model as KServe's application knows it: its state, its tensors, and events."""

    def __init__(self, service: Service) -> None:
        super().__init__(service.name)
        self._service = service

    @property
    def ready(self) -> bool:
        """Whether requests should be sent here."""
        return self._service.is_ready

    @ready.setter
    def ready(self, value: bool) -> None:
        """KServe sets it in places; only the service knows."""

    async def predict(self, payload: Any, headers: dict[str, str] | None = None) -> Any:  # noqa: ARG002
        """Answers the V1 body of a CloudEvent; other requests do not come by here."""
        query = v1.from_payload(payload, self._service.export)
        deadline = self._service.deadline(None)
        query, answers = await self._service.answer(0, lambda: query, deadline)
        return orjson.loads(v1.write(answers, self._service.export, query))

    def get_input_types(self) -> list[dict[str, Any]]:
        """The input tensors, for the metadata endpoint."""
        return v2.metadata(self._service.export)[0]

    def get_output_types(self) -> list[dict[str, Any]]:
        """The output tensors, for the metadata endpoint."""
        return v2.metadata(self._service.export)[1]


class CheckedDataPlane(DataPlane):  # type: ignore[misc]
    """KServe's, which knows when the model fails, and whose fault a body is."""

    def __init__(self, service: Service, models: ModelRepository) -> None:
        super().__init__(model_registry=models)
        self._service = service

    async def live(self) -> dict[str, str]:
        """The state of the server. Raises ServerNotLive: only a restart may help."""
        if not self._service.predictor.is_live:
            raise ServerNotLive(
                f"The model failed {self._service.predictor.faults} times in a row."
            )
        return {"status": "alive"}

    async def ready(self) -> bool:
        """Whether requests should be sent here."""
        return self._service.is_ready

    def decode(self, body: Any, headers: dict[str, str]) -> tuple[Any, dict[str, Any]]:
        """Decodes a body. Raises BadRequest: it cannot be decoded."""
        try:
            return super().decode(body, headers)  # type: ignore[no-any-return]
        except MemoryError:
            raise
        except Exception as error:
            raise BadRequest(f"body: {type(error).__name__}: {error}") from error


def _without_traceback(record: logging.LogRecord) -> bool:
    """Makes one line of a probe that fails; KServe logs a traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, ModelNotReady | ServerNotLive):
        record.msg, record.args, record.exc_info = str(error), (), None
    return True
