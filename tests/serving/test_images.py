"""Images that come as files, as JPEG and PNG in base64."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness.predictions import answer_v1
from PIL import Image

from kfp_pytorch.serving import export, images
from kfp_pytorch.serving.errors import BadRequest
from kfp_pytorch.serving.predictor import Predictor


def file_of(pixels: Any, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(buffer, kind)
    return buffer.getvalue()


def b64(content: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(content).decode()}


def bright(quarter: int) -> Any:
    return np.kron(np.eye(4, dtype=int)[quarter].reshape(2, 2), np.full((2, 2), 255))


def png_head(width: int, height: int) -> bytes:
    """A PNG that states a size and has next to no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.fixture
def loaded(exported: Path) -> export.Export:
    return export.load(exported)


@pytest.fixture(scope="module")
def any_size(
    tmp_path_factory: pytest.TempPathFactory, write_export: Callable[..., Path]
) -> export.Export:
    class Mean(torch.nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return image.mean(dim=(2, 3)).repeat(1, 4)[:, :4]

    sizes = {2: torch.export.Dim("height", min=1), 3: torch.export.Dim("width", min=1)}
    inputs = [{"name": "image", "shape": [-1, 3, -1, -1], "datatype": "FP32"}]
    folder = tmp_path_factory.mktemp("any") / "export"
    example = torch.zeros(2, 3, 5, 6)
    return export.load(write_export(folder, Mean(), example, sizes, inputs=inputs))


def test_a_file_is_answered_as_the_same_image_in_lists(loaded: export.Export) -> None:
    served = Predictor(loaded)
    files = [b64(file_of(bright(quarter))) for quarter in (2, 0)]
    lists = [[bright(quarter).tolist()] for quarter in (2, 0)]
    by_files = answer_v1(served, {"instances": files})
    assert [answer["class"] for answer in by_files["predictions"]] == [2, 0]
    assert by_files == answer_v1(served, {"instances": lists})


def test_files_of_several_sizes_are_answered_in_order(any_size: export.Export) -> None:
    pixels = [np.full((4, 4, 3), 10), np.full((4, 4, 3), 20), np.full((3, 7, 3), 30)]
    parts = images.from_files([file_of(each) for each in pixels], any_size, "instances")
    assert [part.shape for part in parts] == [(2, 3, 4, 4), (1, 3, 3, 7)]
    assert [float(row.mean()) for part in parts for row in part] == [10, 20, 30]


def test_a_jpeg_is_read_too_and_a_grey_one_becomes_colours(any_size: export.Export) -> None:
    (part,) = images.from_files([file_of(np.full((8, 8), 100), "JPEG")], any_size, "instances")
    assert part.shape == (1, 3, 8, 8)
    assert abs(part.astype(int) - 100).max() <= 1


def test_pixels_are_put_into_the_values_that_the_model_states(
    write_export: Callable[..., Path], tmp_path: Path
) -> None:
    small = export.load(write_export(tmp_path, preprocessing={"values": [0, 16]}))
    (part,) = images.from_files([file_of(bright(1))], small, "instances")
    assert sorted(set(part.ravel().tolist())) == [0, 16]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("?", r"instances\[0\]: not base64"),
        ("", r"instances\[0\]: no JPEG or PNG image"),
        (base64.b64encode(b"GIF89a" + bytes(30)).decode(), "no JPEG or PNG image"),
        (base64.b64encode(file_of(bright(0))[:40]).decode(), "no JPEG or PNG|cannot be decoded"),
        (base64.b64encode(file_of(np.zeros((5, 4)))).decode(), r"4 × 5 pixels .* takes 4 × 4"),
        (base64.b64encode(png_head(4, 4)).decode(), "cannot be decoded"),
    ],
)
def test_what_is_no_image_of_the_models_size_is_refused(
    loaded: export.Export, content: str, reason: str
) -> None:
    with pytest.raises(BadRequest, match=reason):
        images.from_files([content], loaded, "instances")


def test_a_decoder_that_gets_no_memory_is_not_the_requests_fault(loaded: export.Export) -> None:
    class Image:
        mode = "L"

        def __array__(self, *_: Any) -> Any:
            raise OSError("out of memory error when reading image file")

    with pytest.raises(MemoryError):
        images._decode(Image(), loaded, "instances[0]")


@pytest.mark.parametrize("sizes", [[(60_000, 60_000)], [(5_000, 5_000)] * 3])
def test_a_decompression_bomb_is_refused_before_anything_is_allocated(
    any_size: export.Export, monkeypatch: pytest.MonkeyPatch, sizes: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(images, "_decode", lambda *_: pytest.fail("was decoded"))
    bombs = [png_head(*size) for size in sizes]
    with pytest.raises(BadRequest, match="the images of a request have at most 50000000"):
        images.from_files(bombs, any_size, "instances")


def test_a_model_that_takes_no_images_says_so(
    write_export: Callable[..., Path], tmp_path: Path
) -> None:
    inputs = [{"name": "x", "shape": [-1, 16], "datatype": "FP32"}]
    plain = export.load(write_export(tmp_path, inputs=inputs))
    with pytest.raises(BadRequest, match=r"the model takes \[-1, 16\], which is no batch of"):
        images.from_files([file_of(bright(0))], plain, "instances")
