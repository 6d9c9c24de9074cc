"""Images in folders named after their classes: `train/CLASS/x.jpg` and `val/CLASS/y.jpg`.

Without these two the classes are directly in the folder, and a fixed fifth of each is held out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from kfp_pytorch.training.data import sources
from kfp_pytorch.training.data.encoded_images import Labelled
from kfp_pytorch.training.data.sources import IMAGE_SUFFIXES, Files
from kfp_pytorch.training.entry.termination_message import printable
from kfp_pytorch.training.errors import DataError
from kfp_pytorch.training.parallel.process_group import World, on_main, once_per_node

LOG = logging.getLogger("kfp_pytorch.training")
TRAIN, HELD_OUT = "train", "val"
# Other names of the first of these two, in lower case.
_TRAIN_NAMES = (TRAIN, "training")
# Image formats that cannot be decoded.
_OTHER_PICTURES = (
    *(".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".tga"),
    *(".heic", ".heif", ".avif", ".jp2", ".jxl"),
)


class FolderSource:
    """Image files by number; see `sources.Source`."""

    def __init__(self, files: Files, names: Sequence[str]) -> None:
        self._files = files
        self._names = sources.NameTable(names)

    def read(self, indices: Sequence[int]) -> list[bytes]:
        """See `Source.read`."""
        return self._files.read([(self._names[index], 0, None) for index in indices])

    def name(self, index: int) -> str:
        """See `Source.name`."""
        return self._files.at(self._names[index])


def find(uri: str, world: World) -> Labelled:
    """Finds the images and classes of a folder; all ranks use rank 0's list."""
    files = Files(uri)
    names = on_main(world, lambda: _listed(files))
    if files.local:
        once_per_node(world, lambda: _check_same(files, names))
    return _labelled(files, names)


def _listed(files: Files) -> list[str]:
    """The images; other files are checked so that no class is lost without an error."""
    sizes = files.sizes()
    every = list(sizes)
    found = _images(files, every)
    _check_sizes(files, {name: sizes[name] for name in found})
    _check_other_formats(files, every, found)
    if files.local and _is_split(found):
        _check_no_class_is_empty(files, every)
    return found


def _check_sizes(files: Files, sizes: dict[str, int]) -> None:
    """Refuses a file that is too large to be an image, before memory is taken for it."""
    name = max(sizes, key=lambda each: sizes[each])
    if sizes[name] > sources.MOST_IMAGE_BYTES:
        raise DataError(
            f"{files.at(name)} has {sizes[name]} bytes, and an image can have "
            f"{sources.MOST_IMAGE_BYTES}; replace or delete it"
        )


def _check_other_formats(files: Files, every: Sequence[str], images: Sequence[str]) -> None:
    """Warns about images of other formats, and refuses a class that has no others."""
    others = [name for name in every if name.lower().endswith(_OTHER_PICTURES)]
    if not others:
        return
    lost = {*_class_folders(others, images)} - {*_class_folders(images, images)}
    if lost:
        raise DataError(
            f"{files.at(min(lost))} holds pictures of kinds that cannot be decoded here, and no "
            f"other ({', '.join(IMAGE_SUFFIXES)} can); convert them, or delete the folder"
        )
    words = "passed over %s pictures of kinds that cannot be decoded here, such as %s"
    LOG.warning(words, len(others), files.at(others[0]))


def _images(files: Files, names: Iterable[str]) -> list[str]:
    found = [name for name in names if name.lower().endswith(IMAGE_SUFFIXES)]
    if not found:
        raise DataError(
            f"{files.uri} holds no images ({', '.join(IMAGE_SUFFIXES)}); give the folder above "
            "train/ and val/, or the one above the classes, with --data-dir"
        )
    return found


def _class_folders(names: Iterable[str], images: Sequence[str]) -> list[str]:
    """The folders of the classes, by the layout of all images."""
    depth = 1 if _is_split(images) else 0
    folders = ["/".join(name.split("/")[: depth + 1]) for name in names if name.count("/") > depth]
    return [f for f in folders if not depth or f.startswith((f"{TRAIN}/", f"{HELD_OUT}/"))]


def _is_split(images: Iterable[str]) -> bool:
    """Whether there are `train/` and `val/`."""
    return {name.partition("/")[0] for name in images} >= {TRAIN, HELD_OUT}


def _check_no_class_is_empty(files: Files, names: Iterable[str]) -> None:
    """Refuses a class whose folder is empty; object stores have no empty folders."""
    below = Path(files.uri) / TRAIN
    full = {name.split("/")[1] for name in names if name.startswith(f"{TRAIN}/")}
    there = {path.name for path in below.iterdir() if path.is_dir() and sources.is_data(path.name)}
    if there - full:
        raise DataError(
            f"{below / min(there - full)} is empty, and its class has no images to train on; put "
            "them there, or delete the folder"
        )


def _check_same(files: Files, names: list[str]) -> None:
    """Checks at the start that a node's own copy of the data has the same files."""
    here = set(_images(files, files.sizes()))
    for word, differing in (("lacks", set(names) - here), ("also has", here - set(names))):
        if differing:
            raise DataError(
                f"{files.uri} on this node {word} {len(differing)} images, such as "
                f"{min(differing)}, compared with rank 0's; give all nodes the same data"
            )


def _check_held_out_exists(files: Files, parts: list[list[str]]) -> None:
    """Refuses to treat `train/` as a class where `val/` is missing."""
    below = [path for path in parts if path[0].lower() in _TRAIN_NAMES]
    if below and all(len(path) > 2 for path in below):
        there = ", ".join(sorted({f"{path[0]}/" for path in parts if len(path) > 1}))
        trained = below[0][0]
        raise DataError(
            f"{files.uri} has classes below {trained}/ and no {HELD_OUT}/ beside it (there is "
            f"{there}); name the images to train on {TRAIN}/ and the held-out ones {HELD_OUT}/, "
            f"or give {files.at(trained)} with --data-dir to have a fifth of it held out"
        )


def _labelled(files: Files, names: list[str]) -> Labelled:
    parts = [name.split("/") for name in names]
    split = _is_split(names)
    if not split:
        _check_held_out_exists(files, parts)
    depth = 1 if split else 0
    # Files beside the class folders are no samples.
    kept = [row for row, path in enumerate(parts) if len(path) > depth + 1]
    if split:
        kept = [row for row in kept if parts[row][0] in (TRAIN, HELD_OUT)]
    trained = {parts[row][depth] for row in kept if not split or parts[row][0] == TRAIN}
    unknown = {parts[row][depth] for row in kept} - trained
    if unknown or not trained:
        problem = (
            f"{HELD_OUT}/{min(unknown)} has no {TRAIN}/{min(unknown)}"
            if unknown
            else ("its images are in no folder that names their class")
        )
        raise DataError(f"{files.uri}: {problem}; each class needs a folder of images to train on")
    folders = sorted(trained)
    number = {name: row for row, name in enumerate(folders)}
    return Labelled(
        source=FolderSource(files, [names[row] for row in kept]),
        labels=torch.tensor([number[parts[row][depth]] for row in kept]),
        held_out=torch.tensor([parts[row][0] == HELD_OUT for row in kept]) if split else None,
        classes=tuple(map(printable, folders)),
    )
