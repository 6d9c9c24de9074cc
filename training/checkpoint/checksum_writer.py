"""Writes a file of a checkpoint in large chunks, and computes its size and sha256."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

# torch.save writes a tensor in dozens of pieces, and releases the GIL for each: the threads that
# write and train would block each other.
CHUNK_BYTES = 4 * 2**20


class MeasuredFile(io.RawIOBase):
    """A file that is written, with its size and sha256."""

    def __init__(self, file: IO[bytes]) -> None:
        """Writes to a file from its start; it is not closed."""
        self._file = file
        self._digest = hashlib.sha256()
        self._bytes = 0
        # The first error that the file raised; each later call raises it again.
        self.failed: Exception | None = None

    def write(self, data: Any) -> int:
        """See `io.RawIOBase`; all of the data is taken."""
        with self._failure_kept():
            self._file.write(data)
        self._digest.update(data)
        written = memoryview(data).nbytes
        self._bytes += written
        return written

    @contextmanager
    def _failure_kept(self) -> Iterator[None]:
        # The caller flushes and closes after an error: a store that is unavailable would be asked
        # again, for minutes, and raise another error.
        if self.failed is not None:
            raise self.failed
        try:
            yield
        except Exception as error:
            self.failed = error
            raise

    def facts(self) -> dict[str, Any]:
        """Size in bytes and sha256 of what was written."""
        return {"bytes": self._bytes, "sha256": self._digest.hexdigest()}

    def writable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def flush(self) -> None:
        """See `io.RawIOBase`."""
        # Python flushes what nobody needs any more, and from 3.13 on prints the error of doing so.
        if not self._file.closed:
            with self._failure_kept():
                self._file.flush()

    def tell(self) -> int:
        """See `io.RawIOBase`."""
        return self._bytes

    def fileno(self) -> int:
        """See `io.RawIOBase`."""
        return self._file.fileno()


class Chunks(io.BufferedWriter):
    """Writes in large chunks, and flushes the file when it is flushed."""

    def flush(self) -> None:
        """See `io.BufferedWriter`."""
        super().flush()
        # Python's own does not flush the file, whose end the next fsync would miss.
        self.raw.flush()
