"""Small images of which each can be told from the others, as files and in shards."""

from __future__ import annotations

import io
import tarfile

import torch
from PIL import Image

# Grey tells which image it is, whatever is cut out of it.
STEP = 5
CLASSES = ("blue", "green")


def encoded(image, kind="JPEG"):
    """The file of an image of bytes: of one channel or three, its height, its width."""
    rows = image.permute(1, 2, 0).squeeze(2) if len(image) == 1 else image.permute(1, 2, 0)
    file = io.BytesIO()
    # torchvision, which could do this, takes seconds to import.
    Image.fromarray(rows.numpy()).save(file, kind)
    return file.getvalue()


def picture(number, kind="JPEG"):
    height, width = 20 + number % 7, 30 - number % 5
    grey = torch.full((3, height, width), number * STEP, dtype=torch.uint8)
    return encoded(grey, kind)


def number_of(image):
    return round(image.float().mean().item() / STEP)


def make_folder(root, train=37, val=10):
    for number in range(train + val):
        path = root / ("train" if number < train else "val") / CLASSES[number % 2]
        path.mkdir(parents=True, exist_ok=True)
        (path / f"{number:03}.jpg").write_bytes(picture(number))
    return root


def make_shard(path, numbers, **replaced):
    with tarfile.open(path, "w") as tar:
        for number in numbers:
            files = {"jpg": picture(number), "cls": str(number % 2).encode(), **replaced}
            for suffix, content in files.items():
                if content is not None:
                    member = tarfile.TarInfo(f"some/{number:03}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def make_shards(root):
    """Shards of very different sizes."""
    for name, numbers in (
        ("train-0", range(19)),
        ("train-1", range(19, 20)),
        ("train-2", range(20, 37)),
        ("val-0", range(37, 47)),
    ):
        make_shard(root / f"{name}.tar", numbers)
    return root
