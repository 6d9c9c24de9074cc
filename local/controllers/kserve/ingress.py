"""The addresses of an InferenceService: each passes requests on to the pods that are ready.

They are in place of Services and of the ingress before them. An address stays while pods come and
go. Each request goes to a revision by its share of the traffic, and to one of its pods in turn. A
pod that leaves answers what it was sent, see `controllers.kubernetes.requests`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import h11

from kfp_pytorch.local import loopback
from kfp_pytorch.local.controllers.kserve.proxy import Stream, answer, copy, exchange
from kfp_pytorch.local.controllers.kubernetes.requests import Requests

_FIRST_BYTES = 64 * 1024
# How HTTP/2 begins: RFC 9113, section 3.4.
_HTTP2 = b"PRI * HTTP/2"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Backend:
    """A pod that takes requests."""

    pod: str  # its uid
    port: int  # where it listens on this machine


@dataclass(frozen=True)
class Target:
    """A revision with its share of the traffic, in percent, and its pods that are ready."""

    percent: int
    backends: Sequence[Backend]


@dataclass
class Split:
    """Divides requests among targets by their shares, and among the pods of each in turn."""

    targets: Sequence[Target] = ()
    _due: list[float] = field(default_factory=list)
    _turns: Counter[int] = field(default_factory=Counter)

    def order(self) -> Iterator[Backend]:
        """The pods for the next request: its own, and those for where that cannot be reached.

        A target with no pod leaves its share to the others; one with no share gets no request.
        """
        targets = [each for each in self.targets if each.percent > 0 and each.backends]
        if len(self._due) != len(targets):
            self._due = [0.0] * len(targets)
        self._due = [due + each.percent for due, each in zip(self._due, targets, strict=True)]
        order = sorted(range(len(targets)), key=lambda i: -self._due[i])
        if order:
            self._due[order[0]] -= sum(each.percent for each in targets)
            self._turns[order[0]] += 1
        for i in order:
            backends = targets[i].backends
            first = self._turns[i] % len(backends)
            yield from [*backends[first:], *backends[:first]]


class Ingress:
    """Listens on one port of 127.0.0.1 for the pods of its targets."""

    def __init__(self, requests: Requests) -> None:
        self._socket = loopback.bound(0)
        self._socket.listen()
        self.port: int = self._socket.getsockname()[1]
        self.split = Split()
        self._requests = requests
        self._connections: set[asyncio.StreamWriter] = set()
        self._serving = asyncio.create_task(self._serve())

    def close(self) -> None:
        """Stop listening, and close the connections."""
        self._serving.cancel()
        for each in self._connections:
            each.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._socket)
        async with server:
            await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            first = await reader.read(_FIRST_BYTES)
            if first.startswith(_HTTP2):
                await self._pass_on(first, reader, writer)
            else:
                client = Stream(h11.SERVER, reader, writer)
                client.given(first)
                await self._answer_all(client)
        except (OSError, h11.LocalProtocolError):
            pass  # the client is gone
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _answer_all(self, client: Stream) -> None:
        try:
            while await self._answered(client):
                client.state.start_next_cycle()
        except h11.RemoteProtocolError as error:
            await answer(client, error.error_status_hint, str(error))

    async def _answered(self, client: Stream) -> bool:
        """Answer the next request of a connection; returns whether there may be another."""
        request = await client.receive()
        if not isinstance(request, h11.Request):
            return False
        await self._forward(request, client)
        # Where the answer came before the whole request, the rest of that is not read.
        return client.state.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}

    async def _forward(self, request: h11.Request, client: Stream) -> None:
        for backend in self._backends():
            with self._requests.to(backend.pod):
                try:
                    reader, writer = await self._connect(backend)
                except OSError:
                    continue  # nothing was sent: another pod may take it
                with contextlib.closing(writer):
                    await exchange(client, request, Stream(h11.CLIENT, reader, writer))
                return
        await answer(client, 503, "no healthy upstream")

    async def _pass_on(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Pass a whole connection on: what is no HTTP/1.1 is not read."""
        for backend in self._backends():
            with contextlib.suppress(OSError):
                answers, requests = await self._connect(backend)
                with contextlib.closing(requests):
                    requests.write(first)
                    await asyncio.gather(copy(reader, requests), copy(answers, writer))
                return

    def _backends(self) -> Iterator[Backend]:
        return (each for each in self.split.order() if not self._requests.is_leaving(each.pod))

    async def _connect(self, backend: Backend) -> Streams:
        return await asyncio.open_connection(loopback.ADDRESS, backend.port)


class Ingresses:
    """The addresses of all InferenceServices of a cluster."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._ingresses: dict[Hashable, Ingress] = {}

    def route(self, key: Hashable, targets: Sequence[Target]) -> str:
        """Pass requests on to these targets from now on; returns the URL, which stays."""
        if key not in self._ingresses:
            self._ingresses[key] = Ingress(self._requests)
        self._ingresses[key].split.targets = targets
        return f"http://{loopback.HOST}:{self._ingresses[key].port}"

    def close(self, key: Hashable) -> None:
        """Close an address, if it is there."""
        ingress = self._ingresses.pop(key, None)
        if ingress:
            ingress.close()

    def close_all(self) -> None:
        """Close every address."""
        for key in list(self._ingresses):
            self.close(key)
