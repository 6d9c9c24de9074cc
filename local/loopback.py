"""The loopback address of this machine, where all servers of the local cluster listen.

It is 127.0.0.1, or ::1 where the machine has no IPv4.
"""

from __future__ import annotations

import socket

_CHOICES = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


def choose(choices: tuple[tuple[socket.AddressFamily, str], ...]) -> tuple[int, str]:
    """The first address family and address that can be bound; the first of all if none can be."""
    for family, address in choices:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as candidate:
                candidate.bind((address, 0))
        except OSError:
            continue
        return family, address
    return choices[0]


FAMILY, ADDRESS = choose(_CHOICES)


# As it stands in a URL.
HOST = f"[{ADDRESS}]" if FAMILY == socket.AF_INET6 else ADDRESS


def bound(port: int) -> socket.socket:
    """A socket of the loopback address for asyncio. Raises OSError: the port is in use."""
    # asyncio sets TCP_NODELAY where the protocol is named. Else the end of an answer waits 40 ms
    # for the client to acknowledge its beginning.
    sock = socket.socket(FAMILY, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((ADDRESS, port))
    except OSError:
        sock.close()
        raise
    return sock
