"""Answers of the API server that do not end: watches and followed logs."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any

import urllib3

from kfp_pytorch.launcher.kubernetes.api_errors import (
    Call,
    StreamIdle,
    Unreachable,
    error_from_status,
)
from kfp_pytorch.launcher.kubernetes.objects import Object

# Of a line of a log that is longer, which may be endless, the rest is left out.
LONGEST_LINE = 64 * 1024
# What the mark begins with that says so.
LEFT_OUT = " … ("
_PART_OF_A_TIME = re.compile(rb"[\dT:.+Z-]+ ?")
# An event is one line that holds a whole object, at most a few MB.
_LONGEST_EVENT = 64 * 1024 * 1024


class LogStream:
    """The lines of an answer, as they come, until the server ends it.

    Iterating raises `Unreachable` when the stream breaks, `StreamIdle` when nothing comes for
    too long.
    """

    def __init__(
        self, call: Call, answer: urllib3.BaseHTTPResponse, longest: int = LONGEST_LINE
    ) -> None:
        self._call = call
        self._answer = answer
        self._longest = longest
        self._closed = False

    def __iter__(self) -> Iterator[str]:
        for line in self._lines():
            yield line.decode("utf-8", "replace")

    def close(self) -> None:
        """Ends the stream, also while another thread waits for its next line."""
        self._closed = True
        try:
            self._answer.shutdown()
        except (OSError, ValueError, RuntimeError):
            # It is over already, or nothing reads it.
            self._answer.close()

    def _lines(self) -> Iterator[bytes]:
        pending, dropped = b"", 0
        try:
            for chunk in self._answer.stream(LONGEST_LINE, decode_content=False):
                *whole, pending = (pending + chunk).split(b"\n")
                for line in whole:
                    yield self._cut(line, dropped)
                    dropped = 0
                dropped += max(0, len(pending) - self._longest)
                pending = pending[: self._longest]
            # The server may have ended the stream within a line, which a resumed one has whole.
            pending = _whole_characters(pending)
            if pending and not _PART_OF_A_TIME.fullmatch(pending):
                yield self._cut(pending, dropped, "at least ")
        except urllib3.exceptions.ReadTimeoutError as error:
            raise StreamIdle(self._call, 0, "", "the stream is silent") from error
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            if not self._closed:
                message = f"the stream broke: {type(error).__name__}: {error}"
                raise Unreachable(self._call, 0, "", message) from error
        finally:
            self._answer.close()

    def _cut(self, line: bytes, dropped: int, about: str = "") -> bytes:
        """Marks what was left out of a line that is too long."""
        if len(line) + dropped <= self._longest:
            return line
        kept = _whole_characters(line[: self._longest])
        dropped += len(line) - len(kept)
        return kept + f"{LEFT_OUT}{about}{dropped:,} bytes left out)".encode()


def _whole_characters(text: bytes) -> bytes:
    """Return UTF-8 text without a character at its end that is not complete."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(text)
    return text[: len(text) - len(decoder.getstate()[0])]


class WatchStream(LogStream):
    """The events of a watch: an iterator of (type, object), bookmarks included.

    An ERROR event is raised as its error (`Expired` for 410). What is no event, such as a line
    that was cut off, is raised as `Unreachable`.
    """

    def __init__(self, call: Call, answer: urllib3.BaseHTTPResponse) -> None:
        super().__init__(call, answer, _LONGEST_EVENT)

    def __iter__(self) -> Iterator[tuple[str, Object]]:  # type: ignore[override]
        for line in self._lines():
            kind, obj = self._event(line)
            if kind == "ERROR":
                raise error_from_status(self._call, obj)
            yield kind, obj

    def _event(self, line: bytes) -> tuple[str, Object]:
        try:
            event: Any = json.loads(line)
            kind, obj = event["type"], event["object"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Unreachable(self._call, 0, "", f"not an event: {line[:80]!r}") from error
        if not isinstance(obj, dict) or not isinstance(obj.get("metadata") or {}, dict):
            raise Unreachable(self._call, 0, "", f"not an event's object: {line[:80]!r}")
        return str(kind), obj
