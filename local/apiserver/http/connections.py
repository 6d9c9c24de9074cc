"""The open connections of one server, so that they can be broken off."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Collection
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

# SO_LINGER on, for no time: closing then sends a reset.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)

Peer = tuple[str, int]


class Connections:
    """The connections that are open, by the client's address."""

    def __init__(self) -> None:
        self._open: dict[Peer, asyncio.Transport] = {}

    def protocol(self) -> Callable[..., asyncio.Protocol]:
        """A class for uvicorn that speaks HTTP as its own does, and reports here."""
        connections = self._open
        base: Any = AutoHTTPProtocol

        class Tracked(base):  # type: ignore[misc]
            def connection_made(self, transport: asyncio.Transport) -> None:
                connections[_peer(transport)] = transport
                super().connection_made(transport)

            def connection_lost(self, exc: Exception | None) -> None:
                connections.pop(_peer(self.transport), None)
                super().connection_lost(exc)

        return Tracked

    def transport(self, peer: Peer) -> asyncio.Transport | None:
        """A client's connection, if it is open."""
        return self._open.get(peer)

    def reset_all(self, keep: Collection[Peer] = ()) -> None:
        """Resets every connection but those of the clients that are to be kept."""
        for peer, transport in list(self._open.items()):
            if peer not in keep:
                reset(transport)


def _peer(transport: asyncio.Transport) -> Peer:
    address = transport.get_extra_info("peername") or ("", 0)
    return str(address[0]), int(address[1])


def reset(transport: asyncio.Transport) -> None:
    """Breaks a connection off with a TCP reset."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()
