"""Decodes image files into a batch of equal squares, on the CPU or by the GPU's decoder.

Both give the same views of the same images; their pixels differ by rounding.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from kfp_pytorch.training.data.augment import View, show, show_many

# The label of an image that could not be decoded: the training loss ignores it.
LEFT_OUT = -100
_JPEG, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
# What may follow the end of a JPEG, such as padding by a camera.
_TRAILER = 4096
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF")
# What Pillow refuses as an attack, too: an image of so many takes up to 1.3 gigabytes.
MOST_PIXELS = 178_956_970
# Of a PNG that are converted at a time: Pillow makes copies of them.
_ROWS = 256
_NOTHING = torch.empty(0, dtype=torch.uint8)

ViewOf = Callable[[int, int, int], View]
"""The view of an image, by its index in a batch, its height and its width."""


class Decoded(NamedTuple):
    """uint8 images [images, 3, size, size], and index and reason of each that failed."""

    images: Tensor
    failures: list[tuple[int, str]]


def on_cpu(contents: Sequence[Tensor], view_of: ViewOf, size: int) -> Decoded:
    """Decodes whole JPEG, PNG, WebP or GIF files in this process; channels last in memory."""
    batch = _empty(len(contents), size, torch.device("cpu"))
    failures = []
    for place, content in enumerate(contents):
        try:
            image = _decode(content)
        except (RuntimeError, ValueError) as error:
            failures.append((place, _reason(error)))
            batch[place].zero_()
            continue
        view = view_of(place, image.shape[1], image.shape[2])
        batch[place].copy_(show(image, view, size))
    return Decoded(batch, failures)


def on_gpu(contents: Sequence[Tensor], view_of: ViewOf, size: int, device: torch.device) -> Decoded:
    """Decodes files with a GPU's JPEG decoder; other images are decoded in this process."""
    usual = [place for place, content in enumerate(contents) if is_whole_jpeg(content)]
    images = dict(zip(usual, _decode_jpegs([contents[p] for p in usual], device), strict=True))
    rest = [place for place in range(len(contents)) if images.get(place) is None]
    by_cpu = on_cpu([contents[p] for p in rest], lambda i, *hw: view_of(rest[i], *hw), size)
    batch = _empty(len(contents), size, device)
    done = [(place, image) for place, image in images.items() if image is not None]
    if done:
        views = [view_of(place, image.shape[1], image.shape[2]) for place, image in done]
        shown = show_many([image for _, image in done], views, size)
        batch[torch.tensor([place for place, _ in done]).to(device)] = shown
    for row, place in enumerate(rest):
        batch[place].copy_(by_cpu.images[row])
    return Decoded(batch, [(rest[row], reason) for row, reason in by_cpu.failures])


def is_whole_jpeg(content: Tensor) -> bool:
    """Whether a file is a valid, whole JPEG: a GPU would decode a truncated one to grey."""
    head, tail = content[: len(_JPEG)].numpy().tobytes(), content[-_TRAILER:].numpy().tobytes()
    if head != _JPEG or _JPEG_END not in tail:
        return False
    try:
        _check_pixels(content)
    except ValueError:
        return False
    return True


def as_tensor(content: bytes) -> Tensor:
    """The bytes of a file, for a decoder."""
    # torch warns about bytes that are not writable.
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else _NOTHING


def gpu_can_decode(device: torch.device) -> bool:
    """Whether there is a GPU, and this torchvision was built to decode with it."""
    if device.type != "cuda":
        return False
    from torchvision.io import encode_jpeg

    probe = encode_jpeg(torch.zeros(3, 16, 16, dtype=torch.uint8))
    return _decode_jpegs([probe], device)[0] is not None


def _empty(images: int, size: int, device: torch.device) -> Tensor:
    shape = (images, 3, size, size)
    return torch.empty(shape, dtype=torch.uint8, device=device, memory_format=torch.channels_last)


def _decode(content: Tensor) -> Tensor:
    # torchvision takes seconds to import, and data sets in memory do not need it.
    from torchvision.io import ImageReadMode, decode_image

    if not len(content):
        raise ValueError("the file is empty")
    if _check_pixels(content) == "PNG":
        return _decode_png(content)
    image: Tensor = decode_image(content, mode=ImageReadMode.RGB)
    # The first picture of an animation.
    return image[0] if image.dim() == 4 else image


def _decode_png(content: Tensor) -> Tensor:
    """Decodes a PNG with Pillow: torchvision 0.29 crashes at damaged ones."""
    try:
        # Sees damage that the decoder does not; the image cannot be used afterwards.
        _open(content).verify()
        image = _open(content)
        pixels = np.empty((image.height, image.width, 3), dtype=np.uint8)
        for top in range(0, image.height, _ROWS):
            part = image.crop((0, top, image.width, min(top + _ROWS, image.height)))
            if part.mode.startswith("I"):
                # Of 16 bits, of which `convert` would keep the low ones.
                part = part.point(lambda value: value / 256).convert("L")
            pixels[top : top + _ROWS] = np.asarray(part.convert("RGB"))
    except (OSError, EOFError, SyntaxError) as error:
        raise ValueError(str(error)) from error
    return torch.from_numpy(pixels).permute(2, 0, 1)


def _open(content: Tensor) -> Image.Image:
    with warnings.catch_warnings():
        # Of half as many pixels as it refuses.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return Image.open(io.BytesIO(content.numpy().data), formats=_FORMATS)


def _check_pixels(content: Tensor) -> str:
    """Refuses an image whose header claims more pixels than there is memory for.

    Returns its format. Raises ValueError: if it is refused, or the header cannot be read.
    """
    try:
        image = _open(content)
        # Of an animation all pictures are decoded.
        pixels = image.width * image.height * getattr(image, "n_frames", 1)
    except (OSError, EOFError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(str(error)) from error
    if pixels > MOST_PIXELS:
        raise ValueError(f"it has {pixels} pixels, and can have {MOST_PIXELS}")
    return image.format or ""


def _decode_jpegs(contents: Sequence[Tensor], device: torch.device) -> list[Tensor | None]:
    """Decodes JPEGs on a GPU; None for one that its decoder does not support."""
    from torchvision.io import ImageReadMode, decode_jpeg

    if not contents:
        return []
    try:
        return list(decode_jpeg(list(contents), mode=ImageReadMode.RGB, device=device))
    except RuntimeError:
        # One fails all of them: halve until it is alone.
        if len(contents) == 1:
            return [None]
        half = len(contents) // 2
        return [*_decode_jpegs(contents[:half], device), *_decode_jpegs(contents[half:], device)]


def _reason(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
