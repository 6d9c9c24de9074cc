"""Runs commands beside the one of a container, as `kubectl exec` does.

    python -I -S beside.py serve SOCKET -- COMMAND…
    python -I -S beside.py exec PODS NAMESPACE POD --container NAME -- COMMAND…

`serve` runs a container's command and ends as it ends. Meanwhile it listens at SOCKET, and runs
what it is asked for: in the container's environment and folder, in a session of its own, without
input. What it has started may outlive `exec`, as on a cluster, and not the container: the guard of
the container ends it.

`exec` finds the socket of a container under the folder PODS (see `socket_of`), copies what its
command prints, and ends as that ends. A program of the standard library alone, as the guard is.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_SOCKET = "exec"
_READ = 64 * 1024
_STARTS_WITHIN_S = 10.0
# The exit status of a container that cannot start, and those of `kubectl exec`.
_NOT_STARTED, _NOT_FOUND, _NOT_RUN = 128, 1, 126


def socket_of(pod_folder: Path, container: str) -> Path:
    """Where a container of a pod takes commands."""
    return pod_folder / "containers" / container / _SOCKET


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Work in a folder: the path of a Unix socket has at most 107 bytes, its name is short."""
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(folder)
        yield
    finally:
        os.fchdir(before)
        os.close(before)


# In the container.


def _serve(path: Path, command: list[str]) -> int:
    listener = _listener(path)
    try:
        main = subprocess.Popen(command)
    except OSError as error:
        print(_why(command, error), file=sys.stderr)
        return _NOT_STARTED
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: main.send_signal(number))
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    return _status(main.wait())


def _listener(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)  # for this user alone
    with _inside(path.parent):
        unready = f"{path.name}.unready"
        Path(unready).unlink(missing_ok=True)
        listener.bind(unready)
        listener.listen()
        Path(unready).rename(path.name)
    os.umask(before)
    return listener


def _accept(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):  # nobody waits for the answer any more
        data, outputs, _, _ = socket.recv_fds(connection, _READ, 2)
        while data and not data.endswith(b"\n"):
            more = connection.recv(_READ)
            data = data + more if more else b""
        if data:
            connection.sendall(json.dumps(_run(json.loads(data), outputs)).encode())


def _run(command: list[str], outputs: list[int]) -> dict[str, int | str]:
    """Run a command to its end; `outputs` are its stdout and stderr. Returns what to answer."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=outputs[0],
            stderr=outputs[1],
            start_new_session=True,
        )
    except OSError as error:
        return {"error": _why(command, error)}
    finally:
        for output in outputs:
            os.close(output)
    return {"exit": _status(process.wait())}


def _status(code: int) -> int:
    """The exit status as a shell has it: 128 + N after signal N."""
    return code if code >= 0 else 128 - code


def _why(command: list[str], error: OSError) -> str:
    return f'unable to start container process: exec: "{command[0]}": {error.strerror}'


# Outside of it.


def _exec(pods: Path, namespace: str, pod: str, container: str, command: list[str]) -> int:
    connection = _connection(pods, namespace, pod, container)
    if connection is None:
        print(
            f'Error from server (NotFound): container "{container}" of pod "{pod}" does not run',
            file=sys.stderr,
        )
        return _NOT_FOUND
    readers, writers = zip(os.pipe(), os.pipe(), strict=True)
    data = json.dumps(command).encode() + b"\n"
    sent = socket.send_fds(connection, [data], list(writers))
    for writer in writers:
        os.close(writer)
    connection.sendall(data[sent:])
    answer = _copied(connection, dict(zip(readers, (1, 2), strict=True)))
    if "error" in answer:
        print(answer["error"], file=sys.stderr)
        return _NOT_RUN
    # Without an answer, the container has ended, and the command with it.
    return int(answer.get("exit", 128 + signal.SIGKILL))


def _connection(pods: Path, namespace: str, pod: str, container: str) -> socket.socket | None:
    """A connection to a container; one whose process has just started may not listen yet."""
    last = time.monotonic() + _STARTS_WITHIN_S
    while True:
        folders = [f for f in pods.glob("*/") if f.name.rpartition("_")[0] == f"{namespace}_{pod}"]
        # An earlier pod of the name may have left its folder.
        for folder in folders:
            connection = _connected(socket_of(folder, container))
            if connection is not None:
                return connection
        if not folders or time.monotonic() > last:
            return None
        time.sleep(0.05)


def _connected(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        with _inside(path.parent):
            connection.connect(path.name)
    except OSError:
        connection.close()
        return None
    return connection


def _copied(connection: socket.socket, outputs: dict[int, int]) -> dict[str, int | str]:
    """Copy what a command prints until it has ended; returns the answer, empty where none came.

    `outputs`: where to write what is read, by descriptors.
    """
    answer = b""
    poll = select.poll()
    for descriptor in (connection.fileno(), *outputs):
        poll.register(descriptor, select.POLLIN)
    wait: float | None = None
    # What has been printed before the end is copied, too.
    while ready := poll.poll(wait):
        for descriptor, _ in ready:
            data = _read(descriptor)
            if not data:
                poll.unregister(descriptor)
            if descriptor in outputs:
                _write(outputs[descriptor], data)
            elif data:
                answer += data
            else:
                wait = 0
    return dict(json.loads(answer or b"{}"))


def _read(descriptor: int) -> bytes:
    """What there is; nothing at its end, also where the other end was killed."""
    with contextlib.suppress(ConnectionResetError):
        return os.read(descriptor, _READ)
    return b""


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def main(arguments: list[str]) -> int:
    """Run what the command line says; returns the exit status."""
    at = arguments.index("--")
    options, command = arguments[:at], arguments[at + 1 :]
    if options[0] == "serve":
        return _serve(Path(options[1]), command)
    pods, namespace, pod, _, container = options[1:]
    return _exec(Path(pods), namespace, pod, container, command)


if __name__ == "__main__":
    # Without the interpreter's clean-up, for which others would wait.
    os._exit(main(sys.argv[1:]))
