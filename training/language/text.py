"""Text as bytes, a data set for language models made of any files.

There is no tokeniser: a token is a byte. The order depends on the seed alone. The windows of all
epochs are one endless sequence, of which each step takes the next global batch; so every window
occurs once per epoch, all ranks have equally many, and one number is the position of a run.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kfp_pytorch.training.data.sources import Files
from kfp_pytorch.training.errors import CheckpointError, ConfigError
from kfp_pytorch.training.resources import usable_memory

VOCABULARY = 256
# Between two files. No text has it.
_SEPARATOR = b"\0"
_MOST_BYTES = 4 * 2**30
# Of the text in memory, while it is read and split.
_COPIES = 4


def standard_library() -> list[Path]:
    """Return the sources of Python's standard library, about 5 MB, which every Python has."""
    return sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))


def files_in(folder: Path) -> list[Path]:
    """Return all files under a folder but hidden ones, in the order of their paths."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; name one with text, or none for the default")
    files = sorted(folder / name for name in Files(str(folder), "--text-files").sizes())
    if not files:
        raise ConfigError(f"{folder} has no files; put text there, or name no folder")
    return files


@dataclass(frozen=True)
class ByteText:
    """A text in memory."""

    data: Tensor  # its bytes, one-dimensional, uint8
    sha256: str  # their digest in hexadecimal

    @classmethod
    def read(cls, files: Sequence[Path]) -> ByteText:
        """Read files, a zero byte between two. Raises ConfigError: unreadable, or too large."""
        most, size = min(_MOST_BYTES, usable_memory() // _COPIES), 0
        parts = []
        for path in files:
            try:
                size += path.stat().st_size + 1
                if size > most:
                    raise ConfigError(
                        f"the text has more than {most} bytes at {path}; it is kept in memory, so "
                        "give fewer files, or the pod more memory"
                    )
                parts.append(path.read_bytes())
            except OSError as error:
                raise ConfigError(f"the text {path} cannot be read: {error}") from error
        return cls.of(_SEPARATOR.join(parts))

    @classmethod
    def of(cls, text: bytes) -> ByteText:
        """Make a text of bytes. Raises ConfigError: if there are none."""
        if not text:
            raise ConfigError("the text is empty; give --text-files that are not")
        data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        return cls(data, hashlib.sha256(text).hexdigest())

    def split(self, held_out: float = 0.05) -> tuple[ByteText, ByteText]:
        """Split off the end, a share between 0 and 1, as a text to evaluate on."""
        cut = len(self.data) - max(1, int(len(self.data) * held_out))
        text = self.data.numpy().tobytes()
        return ByteText.of(text[:cut]), ByteText.of(text[cut:])

    def windows(self, seq_len: int) -> int:
        """Return the number of windows, each with the byte after it as its last target."""
        return (len(self.data) - 1) // seq_len


class TextBatches(Iterator[Tensor]):
    """This rank's batches of windows, without end. `windows` is the number of windows of an epoch.

    Its state is a plain dictionary: a run resumes with the next window, also with another number of
    ranks or another batch size. `data_rank` is this rank's part of the global batch, from 0.
    """

    def __init__(
        self,
        text: ByteText,
        seq_len: int,
        batch_size: int,
        data_rank: int = 0,
        data_ranks: int = 1,
        seed: int = 0,
    ) -> None:
        if seq_len < 1 or batch_size < 1:
            raise ConfigError(
                f"seq_len={seq_len} and batch_size={batch_size}; both must be at least 1"
            )
        if not 0 <= data_rank < data_ranks:
            raise ConfigError(f"part {data_rank} of a batch in {data_ranks} parts does not exist")
        self.windows = text.windows(seq_len)
        if self.windows < 1:
            raise ConfigError(
                f"the text has {len(text.data)} bytes, fewer than the {seq_len + 1} of one window; "
                "give more text or a shorter sequence"
            )
        self._text, self._seq_len = text, seq_len
        self._batch_size = batch_size
        self._data_rank, self._data_ranks = data_rank, data_ranks
        self._seed = seed
        self._seen = 0
        self._order: tuple[int, Tensor] | None = None

    @property
    def epoch(self) -> float:
        """The epochs that are done, with the fraction of the current one."""
        return self._seen / self.windows

    def __next__(self) -> Tensor:
        batch = self.peek()
        self.advance()
        return batch

    def advance(self) -> None:
        """Count the next batch of all ranks as seen."""
        self._seen += self._batch_size * self._data_ranks

    def peek(self) -> Tensor:
        """Return the next batch: int64, windows by one byte more than the sequence."""
        first = self._seen + self._data_rank * self._batch_size
        positions = range(first, first + self._batch_size)
        starts = torch.stack([self._window_at(position) for position in positions]) * self._seq_len
        offsets = torch.arange(self._seq_len + 1)
        return self._text.data[starts[:, None] + offsets].long()

    def _window_at(self, position: int) -> Tensor:
        """Return the number of the window at a position of the endless sequence."""
        epoch, index = divmod(position, self.windows)
        if self._order is None or self._order[0] != epoch:
            generator = torch.Generator().manual_seed(_order_seed(self._seed, epoch))
            self._order = epoch, torch.randperm(self.windows, generator=generator)
        return self._order[1][index]

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and the sequence of windows; the same on all ranks."""
        return {"seen": self._seen, **self._sequence()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at another run's position. Raises CheckpointError: of other text or order."""
        for name, ours in self._sequence().items():
            if state.get(name) != ours:
                raise CheckpointError(
                    f"the checkpoint read text with {name} {state.get(name)!r}, this run has "
                    f"{ours!r}; give the same, or start again"
                )
        self._seen = int(state["seen"])

    def _sequence(self) -> dict[str, Any]:
        return {"sha256": self._text.sha256, "seq_len": self._seq_len, "seed": self._seed}


def _order_seed(seed: int, epoch: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{epoch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
