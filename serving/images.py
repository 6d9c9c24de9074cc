"""Decodes the JPEG and PNG images of a request, within stated limits."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from kfp_pytorch.serving.errors import BadRequest
from kfp_pytorch.serving.export import Export
from kfp_pytorch.serving.tensors import Array, from_array

# Of one image, and of all images of a request together. A file of some kilobytes can state more.
MAX_PIXELS = 50_000_000
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_FORMATS = ("JPEG", "PNG")
# Of Pillow's OSError where a decoder got no memory.
_MEMORY_FULL = "out of memory"
_FIRST_BYTES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")


def takes_images(export: Export) -> bool:
    """Whether the model's input is a batch of images: channels first, of known number."""
    shape = export.input.shape
    return len(shape) == 4 and shape[1] in _MODES


def from_files(files: Sequence[bytes | str], export: Export, field: str) -> list[Array]:
    """Decodes images to rows, in order; those next to each other of one size are one array.

    A string is base64; so are bytes that are no image. Raises BadRequest: one is no image, is
    larger than the limits, or not of the model's size. Nothing is allocated for it then.
    """
    if not takes_images(export):
        shape = list(export.input.shape)
        raise BadRequest(f"{field}: the model takes {shape}, which is no batch of images")
    opened, pixels = [], 0
    for index, file in enumerate(files):
        place = f"{field}[{index}]"
        image = _open(_content(file, place), place)
        pixels += image.width * image.height
        if pixels > MAX_PIXELS:
            raise BadRequest(
                f"{place}: {image.width} × {image.height} pixels, {pixels} with those before it; "
                f"the images of a request have at most {MAX_PIXELS}"
            )
        _check_size(image, export, place)
        opened.append((image, place))
    groups: list[list[Array]] = []
    for image, place in opened:
        row = _decode(image, export, place)
        if groups and groups[-1][0].shape == row.shape:
            groups[-1].append(row)
        else:
            groups.append([row])
    return [from_array(np.stack(rows), export.input, field) for rows in groups]


def _content(file: bytes | str, place: str) -> bytes:
    if isinstance(file, bytes) and file.startswith(_FIRST_BYTES):
        return file
    try:
        return base64.b64decode(file, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"{place}: not base64: {error}") from error


def _open(content: bytes, place: str) -> Any:
    """Reads the head of an image: its format and size."""
    # It takes time to import, and only a model of images needs it.
    from PIL import Image

    # Our own limit is lower, and an error.
    Image.MAX_IMAGE_PIXELS = None
    try:
        return Image.open(io.BytesIO(content), formats=_FORMATS)
    except MemoryError:
        raise
    except Exception as error:  # the readers raise errors of many kinds
        kinds = " or ".join(_FORMATS)
        raise BadRequest(f"{place}: no {kinds} image: {error}") from error


def _check_size(image: Any, export: Export, place: str) -> None:
    height, width = export.input.shape[2:]
    if height not in (-1, image.height) or width not in (-1, image.width):
        raise BadRequest(
            f"{place}: the image is {image.width} × {image.height} pixels (width × height), and "
            f"the model takes {width} × {height}: resize it"
        )


def _decode(image: Any, export: Export, place: str) -> Array:
    """The pixels, channels first, in the values that `model.json` states for the input."""
    mode = _MODES[export.input.shape[1]]
    try:
        pixels = np.asarray(image if image.mode == mode else image.convert(mode))
    except MemoryError:
        raise
    except Exception as error:
        if _MEMORY_FULL in str(error):
            raise MemoryError(str(error)) from error
        raise BadRequest(f"{place}: the image cannot be decoded: {error}") from error
    row = pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
    low, high = export.values
    is_plain = (low, high) == (0, 255)
    return row if is_plain else (row * ((high - low) / 255) + low).astype(np.float32)
