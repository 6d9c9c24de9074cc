"""Text as bytes, for language models: a data set made from files that are there.

No tokeniser: a word is a byte, so any file is text. A run's order depends on its seed alone. The
windows of all epochs form one endless row, of which each step takes the next global batch; so every
window comes up once an epoch, ranks always have equally many, and a number says where a run is.
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
    """Return the sources of Python's standard library: text that is wherever Python is.

    Only the modules right in its folder, about 5 MB, in the order of their names.
    """
    return sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))


def files_in(folder: Path) -> list[Path]:
    """Return all files under a folder but hidden ones, in the order of their paths.

    Raises:
        ConfigError: If there is no such folder, or nothing in it.
        DataError: If a folder in it cannot be listed, or a link leads nowhere.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; name one with text, or none for the default")
    files = sorted(folder / name for name in Files(str(folder), "--text-files").sizes())
    if not files:
        raise ConfigError(f"{folder} has no files; put text there, or name no folder")
    return files


@dataclass(frozen=True)
class ByteText:
    """A text in memory.

    Attributes:
        data: Its bytes, one-dimensional, uint8.
        sha256: Of them, in hexadecimal: two runs with the same one read the same text.
    """

    data: Tensor
    sha256: str

    @classmethod
    def read(cls, files: Sequence[Path]) -> ByteText:
        """Read files, one after the other, with a zero byte between two.

        Raises:
            ConfigError: If a file cannot be read, or they are too large for memory together.
        """
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
        """Take over bytes.

        Raises:
            ConfigError: If there are none.
        """
        if not text:
            raise ConfigError("the text is empty; give --text-files that are not")
        data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        return cls(data, hashlib.sha256(text).hexdigest())

    def split(self, held_out: float = 0.05) -> tuple[ByteText, ByteText]:
        """Cut off the end as a text to evaluate on.

        Args:
            held_out: Its part of the whole, above 0 and below 1.
        """
        cut = len(self.data) - max(1, int(len(self.data) * held_out))
        text = self.data.numpy().tobytes()
        return ByteText.of(text[:cut]), ByteText.of(text[cut:])

    def windows(self, seq_len: int) -> int:
        """Return how many windows the text has, that share no byte but the last with the next.

        Args:
            seq_len: Bytes that a window gives to the model; it holds one more, the last target.
        """
        return (len(self.data) - 1) // seq_len


class TextBatches(Iterator[Tensor]):
    """This rank's batches, without end.

    Its state is a plain dictionary: a run goes on with the very next window, also on another number
    of ranks or with another batch size.

    Attributes:
        windows: How many there are in an epoch.

    Args:
        text: What is read.
        seq_len: Bytes a window, in tokens.
        batch_size: Windows a step on one rank.
        data_rank: This rank's part of the global batch, from 0.
        data_ranks: How many parts there are.
        seed: Of the order.

    Raises:
        ConfigError: If the text is shorter than one window, or the rank is none of those.
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
        """How often the whole text was read, with its part of the current time."""
        return self._seen / self.windows

    def __next__(self) -> Tensor:
        """Return the next batch, and count it as seen."""
        batch = self.peek()
        self.advance()
        return batch

    def advance(self) -> None:
        """Count the next batch of all ranks as seen."""
        self._seen += self._batch_size * self._data_ranks

    def peek(self) -> Tensor:
        """Return the next batch: int64, windows by one byte more than the sequence."""
        first = self._seen + self._data_rank * self._batch_size
        places = range(first, first + self._batch_size)
        starts = torch.stack([self._window_at(place) for place in places]) * self._seq_len
        offsets = torch.arange(self._seq_len + 1)
        return self._text.data[starts[:, None] + offsets].long()

    def _window_at(self, place: int) -> Tensor:
        """Return the number of the window at a place of the endless row."""
        epoch, index = divmod(place, self.windows)
        if self._order is None or self._order[0] != epoch:
            generator = torch.Generator().manual_seed(_order_seed(self._seed, epoch))
            self._order = epoch, torch.randperm(self.windows, generator=generator)
        return self._order[1][index]

    def state_dict(self) -> dict[str, Any]:
        """Return where the run is, and in which row of windows; the same on all ranks."""
        return {"seen": self._seen, **self._row()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where another run was.

        Raises:
            CheckpointError: If that run read other text, or in another order.
        """
        for name, ours in self._row().items():
            if state.get(name) != ours:
                raise CheckpointError(
                    f"the checkpoint read text with {name} {state.get(name)!r}, this run has "
                    f"{ours!r}; give the same, or start anew"
                )
        self._seen = int(state["seen"])

    def _row(self) -> dict[str, Any]:
        return {"sha256": self._text.sha256, "seq_len": self._seq_len, "seed": self._seed}


def _order_seed(seed: int, epoch: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{epoch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
