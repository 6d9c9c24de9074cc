"""Images in tar files of the WebDataset layout, such as `train-0001.tar` and `val-0001.tar`.

The library of that name streams shards, and cannot resume in the middle of an epoch or distribute
uneven shards evenly. Here samples have numbers, as those of a folder do, so all properties of the
sampler hold. Neighbours in a shard are shuffled together and read with one request.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import torch

from kfp_pytorch.training.data import tar_index
from kfp_pytorch.training.data.encoded_images import Labelled
from kfp_pytorch.training.data.sources import Files, NameTable
from kfp_pytorch.training.data.tar_index import Shard
from kfp_pytorch.training.errors import DataError, TrainingError
from kfp_pytorch.training.parallel.process_group import World, gather, on_main

CLASSES = "classes.txt"
# Between two neighbours are a label and two headers: cheaper to read than to skip.
_GAP = 64 * 1024
# Read at a time from one shard, where neighbours are read together.
_MOST_TOGETHER = 2**28
_MOST_CLASSES_BYTES = 2**28


class _Range(NamedTuple):
    shard: int
    start: int
    end: int


class ShardSource:
    """Images in shards by number; see `sources.Source`."""

    def __init__(self, files: Files, shards: Sequence[Shard]) -> None:
        self._files = files
        self._shards = [shard.name for shard in shards]
        counts = torch.tensor([len(shard.keys) for shard in shards])
        self._shard = torch.arange(len(shards)).repeat_interleave(counts)
        self._offset = torch.tensor([each for shard in shards for each in shard.offsets])
        self._size = torch.tensor([each for shard in shards for each in shard.sizes])
        self._keys = NameTable([key for shard in shards for key in shard.keys])

    def read(self, indices: Sequence[int]) -> list[bytes]:
        """See `Source.read`."""
        wanted = [self._range(index) for index in indices]
        together = _merged(wanted)
        contents = self._files.read([(self._shards[n], start, end) for n, start, end in together])
        return _cut(wanted, together, contents)

    def name(self, index: int) -> str:
        """See `Source.name`."""
        return f"{self._files.at(self._shards[int(self._shard[index])])}: {self._keys[index]}"

    def _range(self, index: int) -> _Range:
        start = int(self._offset[index])
        return _Range(int(self._shard[index]), start, start + int(self._size[index]))


def find(uri: str, world: World, block: int) -> Labelled:
    """Finds the samples of the shards in a folder, with their classes.

    Where there is no index each rank reads a part of the shards. `block`: how many neighbours are
    shuffled and read together. Raises DataError: on all ranks, if one cannot be used.
    """
    files = Files(uri)
    shards = on_main(world, lambda: tar_index.read_index(files)) or _index_together(files, world)
    named = on_main(world, lambda: _class_names(files))
    labels = torch.tensor([label for shard in shards for label in shard.labels])
    if not len(labels):
        raise DataError(f"the shards in {files.uri} hold no samples; create them again")
    classes = named or tuple(str(number) for number in range(int(labels.max()) + 1))
    if int(labels.max()) >= len(classes):
        raise DataError(
            f"{files.at(CLASSES)} names {len(classes)} classes, and there is a sample of class "
            f"{int(labels.max())}, counted from 0; name each class on a line of its own"
        )
    held_out = [_is_held_out(shard.name) for shard in shards for _ in shard.keys]
    split = any(held_out) and not all(held_out)
    return Labelled(
        source=ShardSource(files, shards),
        labels=labels,
        held_out=torch.tensor(held_out) if split else None,
        classes=classes,
        block=block,
    )


def _index_together(files: Files, world: World) -> list[Shard]:
    sizes = on_main(world, lambda: tar_index.shard_names(files))
    own = dict(list(sizes.items())[world.rank :: world.size])
    found: list[Shard] | TrainingError
    try:
        found = tar_index.index_shards(files, own)
    except TrainingError as error:
        found = error
    parts = gather(world, found)
    for part in parts:
        if isinstance(part, TrainingError):
            raise part
    every = {shard.name: shard for part in parts if isinstance(part, list) for shard in part}
    return [every[name] for name in sizes]


def _class_names(files: Files) -> tuple[str, ...]:
    sizes = files.sizes()
    if CLASSES not in sizes:
        return ()
    # Windows writes a byte order mark before the first name.
    content = files.read_whole(CLASSES, sizes[CLASSES], _MOST_CLASSES_BYTES)
    text = content.decode("utf-8-sig", errors="replace")
    names = [line.strip() for line in re.split("\r\n|\r|\n", text.rstrip())]
    if names == [""]:
        return ()
    if "" in names:
        raise DataError(
            f"{files.at(CLASSES)} names no class on line {names.index('') + 1}, and those after it "
            "would be taken for others; name each class on a line of its own"
        )
    return tuple(names)


def _is_held_out(name: str) -> bool:
    return not tar_index.HELD_OUT_WORDS.isdisjoint(tar_index.words_of(name))


def _merged(wanted: Sequence[_Range]) -> list[_Range]:
    """The ranges to read: neighbours in `wanted` that are neighbours in a shard are one range."""
    together = [wanted[0]]
    for each in wanted[1:]:
        last = together[-1]
        near = each.shard == last.shard and 0 <= each.start - last.end <= _GAP
        if near and each.end - last.start <= _MOST_TOGETHER:
            together[-1] = _Range(last.shard, last.start, each.end)
        else:
            together.append(each)
    return together


def _cut(
    wanted: Sequence[_Range], together: Sequence[_Range], contents: Sequence[bytes]
) -> list[bytes]:
    """Cuts the wanted parts out of the ranges that were read, in the same order."""
    cut, index = [], 0
    for each in wanted:
        while not _holds(together[index], each):
            index += 1
        start = each.start - together[index].start
        cut.append(contents[index][start : start + each.end - each.start])
    return cut


def _holds(outer: _Range, inner: _Range) -> bool:
    return outer.shard == inner.shard and outer.start <= inner.start and inner.end <= outer.end
