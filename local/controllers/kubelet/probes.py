"""Startup, readiness and liveness probes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from kfp_pytorch.local import loopback
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.controllers.kubernetes.ports import Ports, container_port

Check = Callable[[], Awaitable[str]]
"""Probes once; returns the error, or an empty string."""

_OK = range(200, 400)


def check(pod: Object, probe: Object, ports: Ports) -> Check | None:
    """How to probe once; None for `exec` and `grpc`, which are assumed to succeed."""
    action = probe.get("httpGet") or probe.get("tcpSocket")
    if action is None:
        return None
    number = container_port(pod, action["port"])
    if number is None:
        return None
    port = ports.of(pod, number)
    http = "httpGet" in probe

    async def once() -> str:
        try:
            async with asyncio.timeout(probe.get("timeoutSeconds", 1)):
                return await (_get(action, port) if http else _connect(port))
        except TimeoutError:
            return "context deadline exceeded"
        except OSError as error:
            why = error.strerror or error
            return f"dial tcp {loopback.HOST}:{port}: connect: {why}".lower()
        except ValueError as error:
            # The first line of the answer is too long, or its number is.
            return f"malformed HTTP response: {error}"

    return once


async def _connect(port: int) -> str:
    _, writer = await asyncio.open_connection(loopback.ADDRESS, port)
    writer.close()
    return ""


async def _get(action: Object, port: int) -> str:
    reader, writer = await asyncio.open_connection(loopback.ADDRESS, port)
    headers = {each["name"]: each["value"] for each in action.get("httpHeaders") or []}
    headers = {"Host": f"{loopback.HOST}:{port}", "User-Agent": "kube-probe/1.32", **headers}
    lines = [f"GET {action.get('path') or '/'} HTTP/1.1", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode())
        status = (await reader.readline()).split()
    finally:
        writer.close()
    code = int(status[1]) if len(status) > 1 and status[1].isdigit() else 0
    return "" if code in _OK else f"HTTP probe failed with statuscode: {code}"


async def results(probe: Object, once: Check, failed: Callable[[str], None]) -> AsyncIterator[bool]:
    """Probe again and again; yields whether it succeeds, whenever that changes."""
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    thresholds = {True: probe.get("successThreshold", 1), False: probe.get("failureThreshold", 3)}
    reported, last, streak = None, None, 0
    while True:
        error = await once()
        succeeded = not error
        streak = streak + 1 if succeeded == last else 1
        last = succeeded
        if error:
            failed(error)
        if streak >= thresholds[succeeded] and reported != succeeded:
            reported = succeeded
            yield succeeded
        await asyncio.sleep(probe.get("periodSeconds", 10))
