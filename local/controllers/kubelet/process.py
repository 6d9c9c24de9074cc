"""One process of a container: it runs under a guard, and its output becomes a container's log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_pytorch.local.processes import guard, guarded

# The runtime writes a longer line in pieces.
_LONGEST_PIECE = 16 * 1024
_READ = 64 * 1024


@dataclass(frozen=True)
class ProcessSpec:
    """How a process is started."""

    command: list[str]  # the command line; its first word is looked up in the environment's PATH
    environment: Mapping[str, str]  # all of its variables
    folder: Path  # its working directory
    log: Path  # the file of its output
    grace: float  # seconds from SIGTERM to SIGKILL


class StartError(Exception):
    """The command could not be executed; the message is the container runtime's."""


class Process:
    """A running command with all of its descendants; `pid` is its guard's."""

    def __init__(
        self, process: asyncio.subprocess.Process, report: asyncio.StreamReader, log: LogFile
    ) -> None:
        self.pid = process.pid
        self._log = log
        self._process = process
        self._report = report
        self._copying: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, spec: ProcessSpec) -> Process:
        """Start a command. Raises StartError. Raises OSError: its log cannot be written."""
        log = LogFile(spec.log)
        reader, writer = os.pipe()
        report = await _stream(reader)
        line, fds = guarded.command(spec.command, grace=spec.grace, report_fd=writer)
        try:
            process = await asyncio.create_subprocess_exec(
                *line,
                pass_fds=fds,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=spec.environment,
                cwd=spec.folder,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            log.close()
            raise StartError(_message(spec.command[0], error)) from error
        finally:
            os.close(writer)
        started = cls(process, report, log)
        started._copying = asyncio.create_task(_copy(process, log))
        first = await started._line()
        if "errno" in first:
            await started.wait()
            why = OSError(first["errno"], os.strerror(first["errno"]))
            raise StartError(_message(spec.command[0], why))
        return started

    @property
    def log_error(self) -> str:
        """Why a part of its log could not be written; empty if all of it was."""
        return str(self._log.error.strerror) if self._log.error else ""

    async def wait(self) -> int:
        """Wait for the end of all its processes; returns the exit code, 128 + N for signal N."""
        last = await self._line()
        code = await self._process.wait()
        if self._copying is not None:
            await self._copying
        if "signal" in last:
            return 128 + int(last["signal"])
        # Without a report the guard itself was killed, and the command with it.
        return int(last.get("exit", 128 - code if code < 0 else code))

    def terminate(self) -> None:
        """Send SIGTERM to the command; what is left after the grace period is killed."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """Kill all of it now."""
        for pid in guard.descendants(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _line(self) -> dict[str, Any]:
        line = await self._report.readline()
        found: dict[str, Any] = json.loads(line) if line else {}
        return found


async def _stream(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    pipe = os.fdopen(descriptor, "rb", buffering=0)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader


async def _copy(process: asyncio.subprocess.Process, log: LogFile) -> None:
    assert process.stdout is not None  # noqa: S101 (it is a pipe)
    while data := await process.stdout.read(_READ):
        log.write(data)
    log.close()


class LogFile:
    """A container's log: each line with its time, its stream and whether it is whole.

    Both streams come through one pipe, so that their lines keep their order; all are `stdout`.
    What the disk has no room for is dropped: no program stops for its log.
    """

    error: OSError | None = None  # why a part of it is lost; None if none is

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb", buffering=0)
        self._rest = b""

    def close(self) -> None:
        """Write what is left and close the file."""
        if self._rest:
            self._put([self._rest], b"F")
        self._file.close()

    def write(self, data: bytes) -> None:
        """Write output as it comes; a line that has not ended waits for its end."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._put(lines, b"F")
        while len(self._rest) > _LONGEST_PIECE:
            self._put([self._rest[:_LONGEST_PIECE]], b"P")
            self._rest = self._rest[_LONGEST_PIECE:]

    def _put(self, lines: list[bytes], tag: bytes) -> None:
        seconds, nanoseconds = divmod(time.time_ns(), 10**9)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        head = f"{stamp}.{nanoseconds:09d}Z stdout ".encode() + tag + b" "
        data = b"".join(head + line + b"\n" for line in lines)
        try:
            # A disk that is nearly full takes a part, and only refuses the rest.
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            self.error = error


def tail(path: Path, lines: int, size: int) -> str:
    """The end of a log's text. `size`: at most so many bytes."""
    try:
        with path.open("rb") as file:
            # Each line is longer in the file, by its time and tags.
            file.seek(max(0, path.stat().st_size - size - 64 * lines))
            written = file.read().split(b"\n")
    except OSError:
        return ""
    text = b"\n".join(line.split(b" ", 3)[-1] for line in written[-lines - 1 :])
    return text[-size:].decode(errors="replace")


def _message(command: str, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        where = f"stat {command}: no such file or directory"
        why = where if "/" in command else "executable file not found in $PATH"
    elif isinstance(error, OSError):
        why = str(error.strerror).lower()
    else:
        why = str(error)  # such as a null byte in an argument
    return (
        "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
        f'runc create failed: unable to start container process: exec: "{command}": {why}'
    )
