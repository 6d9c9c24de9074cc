"""Makes JPEG files of about 500 x 400 pixels and 50 kB to train from."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import torch

HEIGHT, WIDTH, QUALITY = 400, 500, 90
CLASSES = 64


def make(folder: Path, images: int, links: int) -> Path:
    """Makes images in folders of classes, as an ImageFolder has them.

    `links`: under how many names each lies there: an epoch of several names costs no more disk.
    """
    for label in range(CLASSES):
        for part in ("train", "val"):
            (folder / part / f"{label:03}").mkdir(parents=True)
    with multiprocessing.get_context("forkserver").Pool() as pool:
        pool.starmap(_make, [(folder, number, links) for number in range(images)], chunksize=32)
        pool.starmap(_make, [(folder, -number, 0) for number in range(1, CLASSES + 1)])
    return folder


def _make(folder: Path, number: int, links: int) -> None:
    from torchvision.io import write_jpeg

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(number)
    coarse = torch.rand(1, 3, HEIGHT // 10, WIDTH // 10, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(HEIGHT, WIDTH), mode="bicubic")
    part = "train" if number >= 0 else "val"
    path = folder / part / f"{number % CLASSES:03}" / f"{abs(number)}.jpg"
    write_jpeg((smooth[0].clamp(0, 1) * 255).byte(), str(path), quality=QUALITY)
    for link in range(1, links):
        os.link(path, path.with_name(f"{number}-{link}.jpg"))
