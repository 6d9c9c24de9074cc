"""The server of one process: KServe's HTTP application behind ours, and gRPC beside it."""

# `import kserve` parses sys.argv: nothing but the predictor's own process may import this.
from __future__ import annotations

import asyncio
import logging
import signal
import socket
from functools import partial
from types import FrameType

import uvicorn
from grpc import aio
from kserve.logging import configure_logging

from kfp_pytorch.serving.application import kserve
from kfp_pytorch.serving.protocol import grpc
from kfp_pytorch.serving.protocol.connection import Connection, Connections
from kfp_pytorch.serving.protocol.http import Http
from kfp_pytorch.serving.service import Service

DRAIN_SECONDS = 20.0
# Longer than the proxies before it keep a connection, or they send to one that is being closed.
KEEP_ALIVE_SECONDS = 65

logger = logging.getLogger("kserve")


class Server(uvicorn.Server):
    """uvicorn's, which stops gRPC with it."""

    def __init__(self, config: uvicorn.Config, service: Service, other: aio.Server | None) -> None:
        super().__init__(config)
        self.server_state = Connections(service.settings.max_connections)
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


def serve(
    service: Service, host: str, port: int, grpc_port: int, listening: socket.socket | None = None
) -> None:
    """Serves until a signal, then answers what is in flight.

    `grpc_port`: 0 for no gRPC. `listening`: a socket that is bound already, in place of `host` and
    `port`. Raises OSError: a port is taken.
    """
    configure_logging()
    config = uvicorn.Config(
        Http(service, kserve.application(service, port), DRAIN_SECONDS),
        http=Connection,
        ws="none",
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
