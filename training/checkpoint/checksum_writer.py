"""A file of a checkpoint while it is written: in large pieces, and measured."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

# torch.save writes a tensor in dozens of pieces, each of which lets another thread run and then
# waits for it: the one that trains would be as much in the way of this one as the other way round.
CHUNK_BYTES = 4 * 2**20


class MeasuredFile(io.RawIOBase):
    """A file that is written, and knows its size and sha256.

    Attributes:
        refused: The first error that the file raised; it is raised again by each later call.
    """

    def __init__(self, file: IO[bytes]) -> None:
        """Begins at the start.

        Args:
            file: Where the bytes go; whoever opened it closes it.
        """
        self._file = file
        self._digest = hashlib.sha256()
        self._bytes = 0
        self.refused: Exception | None = None

    def write(self, data: Any) -> int:
        """See `io.RawIOBase`; all of the data is taken."""
        with self._refusal_kept():
            self._file.write(data)
        self._digest.update(data)
        written = memoryview(data).nbytes
        self._bytes += written
        return written

    @contextmanager
    def _refusal_kept(self) -> Iterator[None]:
        # Whoever writes goes on to flush and close: a store that is away would be asked again, for
        # minutes, and raise of where that stands instead.
        if self.refused is not None:
            raise self.refused
        try:
            yield
        except Exception as error:
            self.refused = error
            raise

    def facts(self) -> dict[str, Any]:
        """Size in bytes and sha256 of what was written."""
        return {"bytes": self._bytes, "sha256": self._digest.hexdigest()}

    def writable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def flush(self) -> None:
        """See `io.RawIOBase`."""
        with self._refusal_kept():
            self._file.flush()

    def tell(self) -> int:
        """See `io.RawIOBase`."""
        return self._bytes

    def fileno(self) -> int:
        """See `io.RawIOBase`."""
        return self._file.fileno()


class Chunks(io.BufferedWriter):
    """Hands on what is written in large pieces, and holds nothing back when it is flushed."""

    def flush(self) -> None:
        """See `io.BufferedWriter`."""
        super().flush()
        # Python's own stops here, and the end of the file would miss the fsync that comes next.
        self.raw.flush()
