"""The server of one process: KServe's HTTP application behind ours, and gRPC beside it."""

# `import kserve` parses sys.argv: nothing but the predictor's own process may import this.
from __future__ import annotations

import asyncio
import logging
import signal
import socket
from functools import partial
from types import FrameType
from typing import Any

import orjson
import uvicorn
from grpc import aio
from kserve import Model
from kserve.errors import ModelNotReady, ServerNotLive
from kserve.logging import configure_logging
from kserve.model_repository import ModelRepository
from kserve.model_server import app
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.model_repository_extension import ModelRepositoryExtension
from kserve.protocol.rest.server import RESTServer

from kfp_pytorch.serving.error_answers import add_error_answers
from kfp_pytorch.serving.errors import BadRequest
from kfp_pytorch.serving.protocol import grpc, v1, v2
from kfp_pytorch.serving.protocol.http import Http
from kfp_pytorch.serving.service import Service

DRAIN_SECONDS = 20.0
# Longer than the proxies before it keep a connection, or they send to one that is being closed.
KEEP_ALIVE_SECONDS = 65
# Each logs one line for each request, which costs a third of the throughput (measured).
QUIET_LOGGERS = ("kserve.trace", "uvicorn.access")

logger = logging.getLogger("kserve")


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


class Server(uvicorn.Server):
    """uvicorn's, which stops gRPC with it."""

    def __init__(self, config: uvicorn.Config, service: Service, other: aio.Server | None) -> None:
        super().__init__(config)
        self._service = service
        self._other = other
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begins to stop. While Kubernetes takes a pod out of its Services, requests still come."""
        delay = 0.0 if self._service.stopping else self._service.settings.stop_delay
        self._service.stopping = True
        stop = partial(super().handle_exit, sig, frame)
        if sig == signal.SIGTERM and delay:
            self._loop.call_soon_threadsafe(self._loop.call_later, delay, stop)
        else:
            stop()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops listening, and answers what is in flight."""
        stops = [super().shutdown(sockets)]
        if self._other is not None:
            stops.append(self._other.stop(DRAIN_SECONDS))
        await asyncio.gather(*stops)


def _without_traceback(record: logging.LogRecord) -> bool:
    """Makes one line of a probe that fails; KServe logs a traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, ModelNotReady | ServerNotLive):
        record.msg, record.args, record.exc_info = str(error), (), None
    return True


def serve(
    service: Service, host: str, port: int, grpc_port: int, listening: socket.socket | None = None
) -> None:
    """Serves until a signal, then answers what is in flight.

    `grpc_port`: 0 for no gRPC. `listening`: a socket that is bound already, in place of `host` and
    `port`. Raises OSError: a port is taken.
    """
    configure_logging()
    for quiet in QUIET_LOGGERS:
        logging.getLogger(quiet).setLevel(logging.WARNING)
    logger.addFilter(_without_traceback)
    models = ModelRepository()
    models.update(ExportedModel(service))
    dataplane = CheckedDataPlane(service, models)
    repository = ModelRepositoryExtension(model_registry=models)
    # It adds KServe's endpoints to its application; its server would listen on 0.0.0.0 only.
    RESTServer("kserve.model_server:app", dataplane, repository, port).create_application()
    # After KServe's own, some of which they replace.
    add_error_answers(app)
    config = uvicorn.Config(
        Http(service, app, DRAIN_SECONDS),
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=int(DRAIN_SECONDS),
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    logger.info("model %s from %s on %s:%s", service.name, service.export.directory, host, port)
    factory = config.get_loop_factory()
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_serve(config, service, host, grpc_port, listening))


async def _serve(
    config: uvicorn.Config,
    service: Service,
    host: str,
    grpc_port: int,
    listening: socket.socket | None,
) -> None:
    other = None
    if grpc_port:
        address = f"[{host}]" if ":" in host else host
        other = grpc.server(service, f"{address}:{grpc_port}")
        await other.start()
    server = Server(config, service, other)
    await server.serve(sockets=[listening] if listening else None)
