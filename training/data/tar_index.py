"""The index of tar files in the WebDataset layout, by which any sample can be read alone.

In that layout files with the same name up to the first dot are one sample: `0001.jpg` and
`0001.cls`, the number of its class in digits. The index takes a pass over all shards. On an object
store that is a download, so make it once:

    python -m kfp_pytorch.training.shard_index FOLDER_OR_URI > shards.index.json

and put the result beside the shards.
"""

from __future__ import annotations

import json
import logging
import re
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import IO, Any

from kfp_pytorch.training.data.sources import IMAGE_SUFFIXES, MOST_IMAGE_BYTES, Files
from kfp_pytorch.training.errors import DataError
from kfp_pytorch.training.resources import usable_memory
from kfp_pytorch.training.storage.outages import is_outage

LOG = logging.getLogger("kfp_pytorch.training")
INDEX = "shards.index.json"
HELD_OUT_WORDS = {"val", "valid", "validation"}
_TRAIN_WORDS = {"train", "training"}
_TEST_WORDS = {"test", "testing"}
LABEL_SUFFIX = ".cls"
# More classes than any known data set has.
MOST_CLASSES = 1_000_000
VERSION = 1
# An index takes some ten times its size while it is read, and other ranks of the pod read it too.
_MEMORY_FOR_INDEX = 40
# Of a name in the header of a tar file; tarfile reads one of any length.
_MOST_HEADER_BYTES = 2**20
# Shards that are read at a time by one process: their headers are far apart.
_AT_A_TIME = 8


@dataclass(frozen=True)
class Shard:
    """One tar file."""

    name: str  # its path in the data set's folder
    bytes: int  # its size
    keys: list[str]  # the name of each sample
    offsets: list[int]  # the first byte of each sample's image
    sizes: list[int]  # the bytes of each sample's image
    labels: list[int]  # the class of each sample


def read_index(files: Files) -> list[Shard] | None:
    """Reads the index beside the shards, if any. Raises DataError: damaged, or of other shards."""
    sizes = files.sizes()
    if INDEX not in sizes:
        return None
    text = files.read_whole(INDEX, sizes[INDEX], usable_memory() // _MEMORY_FOR_INDEX)
    try:
        content = json.loads(text)
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']}, and this program reads {VERSION}")
        shards = [Shard(**each) for each in content["shards"]]
        for shard in shards:
            _check_entry(shard)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{files.at(INDEX)} cannot be used: {error!r}; create it again") from error
    there = _tars(sizes)
    # An index that includes the shards of a test set is fine, too.
    known = _without_test_set({shard.name: shard.bytes for shard in shards})
    if there != known:
        differing = sorted(set(there.items()) ^ set(known.items()))
        raise DataError(
            f"{files.at(INDEX)} is not of these shards: {differing[0][0]} is another; create "
            "it again"
        )
    return [shard for shard in shards if shard.name in known]


def _check_entry(shard: Shard) -> None:
    """Refuses an entry of an index that points out of its shard."""
    samples = zip(shard.offsets, shard.sizes, shard.labels, shard.keys, strict=True)
    for offset, size, label, key in samples:
        if not all(type(number) is int for number in (offset, size, label)):
            raise TypeError(f"offset, size and class of {key} in {shard.name} are no whole numbers")
        if offset < 0 or size < 0 or offset + size > shard.bytes:
            raise ValueError(f"{key} does not lie within {shard.name}")
        _check_image_size(key, size)
        if not 0 <= label < MOST_CLASSES:
            raise ValueError(f"{key} in {shard.name} is of class {label}")


def _check_image_size(key: str, size: int) -> None:
    if size > MOST_IMAGE_BYTES:
        raise ValueError(f"{key} has {size} bytes, and an image can have {MOST_IMAGE_BYTES}")


def shard_names(files: Files) -> dict[str, int]:
    """The size of each shard by its name. Raises DataError: if there are none."""
    sizes = files.sizes()
    found = _tars(sizes)
    if not found:
        packed = [name for name in sizes if name.endswith((".tar.gz", ".tgz", ".tar.zst"))]
        words = "is compressed, and such a one cannot be read in parts"
        hint = f"; {packed[0]} {words}" if packed else ""
        raise DataError(f"{files.uri} holds no .tar files{hint}; give their folder with --data-dir")
    return found


def _tars(sizes: dict[str, int]) -> dict[str, int]:
    found = {name: size for name, size in sizes.items() if name.endswith(".tar")}
    kept = _without_test_set(found)
    if test := sorted(found.keys() - kept.keys()):
        LOG.info("left out %s shards of a test set, such as %s", len(test), test[0])
    return kept


def _without_test_set(shards: dict[str, int]) -> dict[str, int]:
    """The shards without those of a test set; all if there are no others."""
    return {name: size for name, size in shards.items() if not _is_test(name)} or shards


def _is_test(name: str) -> bool:
    words = words_of(name)
    return bool(words & _TEST_WORDS) and not words & (_TRAIN_WORDS | HELD_OUT_WORDS)


def words_of(name: str) -> set[str]:
    """The words of a shard's path, which say what it is for."""
    return set(re.split(r"[^a-z]+", name.lower()))


def index_shards(files: Files, sizes: dict[str, int]) -> list[Shard]:
    """Finds the samples of shards, in the order of `sizes`; a damaged one is a DataError."""
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        return list(pool.map(lambda each: _index(files, *each), sizes.items()))


class _Member(tarfile.TarInfo):
    """A member whose header is refused where it claims a name as long as no name is."""

    _EXTENDED = (
        *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
        *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    )

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in self._EXTENDED and self.size > _MOST_HEADER_BYTES:
            raise ValueError(
                f"a header at byte {self.offset} claims {self.size} bytes, and can have "
                f"{_MOST_HEADER_BYTES}"
            )
        member: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]
        return member


def _index(files: Files, name: str, size: int) -> Shard:
    shard = Shard(name, size, [], [], [], [])
    try:
        with (
            files.open(name) as stream,
            tarfile.open(fileobj=stream, mode="r:", tarinfo=_Member) as tar,
        ):
            for key, image, label in _samples(tar):
                if image is None or label is None:
                    lacking = "a class (.cls)" if label is None else "an image"
                    raise ValueError(f"the sample {key} lacks {lacking}")
                _check_image_size(key, image.size)
                shard.keys.append(key)
                shard.offsets.append(image.offset_data)
                shard.sizes.append(image.size)
                shard.labels.append(label)
            _check_end(stream, tar.offset)
    except (tarfile.TarError, ValueError, IndexError, OSError) as error:
        if is_outage(error):
            raise files.failed("read", name, error) from error
        raise DataError(
            f"the shard {files.at(name)} cannot be used: {error}; create it again, in the "
            "layout of WebDataset (KEY.jpg and KEY.cls side by side)"
        ) from error
    return shard


def _check_end(stream: IO[bytes], end: int) -> None:
    """Checks that a tar file ends where no more members were found.

    tarfile treats a damaged header, and a file that is truncated between two members, as the end.
    """
    stream.seek(end)
    rest = stream.read(tarfile.RECORDSIZE)
    if len(rest) < tarfile.BLOCKSIZE or rest.strip(b"\0"):
        raise ValueError(f"it is damaged, cut short or one of several in a row at byte {end}")


def _samples(tar: tarfile.TarFile) -> Iterator[tuple[str, tarfile.TarInfo | None, int | None]]:
    """Each sample's name, image and class: neighbours with one name up to its first dot."""
    key, image, label = "", None, None
    for member in tar:
        # The list of all members is not needed, and grows.
        tar.members = []  # type: ignore[attr-defined]
        if not member.isfile():
            continue
        folder, _, base = member.name.rpartition("/")
        stem, dot, rest = base.partition(".")
        if not stem:
            # A hidden file, such as those of macOS.
            continue
        found = f"{folder}/{stem}" if folder else stem
        suffix = (dot + rest).lower()
        if found != key:
            if key:
                yield key, image, label
            key, image, label = found, None, None
        if suffix in IMAGE_SUFFIXES:
            if image is not None:
                raise ValueError(f"the sample {key} comes twice, or has two images")
            image = member
        elif suffix == LABEL_SUFFIX:
            if label is not None:
                raise ValueError(f"the sample {key} comes twice, or has two classes")
            label = _label(tar, member)
    if key:
        yield key, image, label


def _label(tar: tarfile.TarFile, member: tarfile.TarInfo) -> int:
    stream = tar.extractfile(member)
    text = stream.read(32) if stream else b""
    if not text.strip().isdigit():
        raise ValueError(f"{member.name} holds {text!r}, which is no number of a class")
    label = int(text)
    if label >= MOST_CLASSES:
        raise ValueError(f"{member.name} holds {label}; there can be {MOST_CLASSES} classes")
    return label


def as_json(shards: Sequence[Shard]) -> dict[str, Any]:
    """The content of an index file."""
    return {"version": VERSION, "shards": [asdict(shard) for shard in shards]}
