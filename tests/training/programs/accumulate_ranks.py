"""What a rank does to compare gradients in parts, exchanged once, with those of one process.

Run by `runpy` with `environ` given to it. It ends with an error where they differ.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.data.datasets import Split
from kfp_pytorch.training.data.sampler import Batch
from kfp_pytorch.training.image import loop
from kfp_pytorch.training.parallel import compute_options
from kfp_pytorch.training.parallel.process_group import ALONE, World

SIZES = (7, 6)


def gradients(world, samples, batch, accumulate):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    config = Config(accumulate=accumulate, batch_size=8)
    chosen = compute_options.choose(config, world.device)
    replica = compute_options.replicate(model, world, chosen, config.batch_size)
    job = SimpleNamespace(config=config, world=world, replica=replica, compute=chosen)
    for _ in range(3):
        model.zero_grad()
        loop.backward(job, samples, batch)
    return [parameter.grad.clone() for parameter in model.parameters()]


def main(rank):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(sum(SIZES), 3, 2, 2, generator=generator)
    labels = torch.randint(5, (sum(SIZES),), generator=generator)
    whole = Batch(torch.arange(sum(SIZES)), sum(SIZES), sum(SIZES), start=0)
    expected = gradients(ALONE, Split(images, labels), whole, 1)
    part = slice(SIZES[0]) if rank == 0 else slice(SIZES[0], None)
    world = World(rank, rank, 2, torch.device("cpu"))
    batch = Batch(torch.arange(SIZES[rank]), SIZES[rank], sum(SIZES), start=0)
    for accumulate in (1, 3):
        found = gradients(world, Split(images[part], labels[part]), batch, accumulate)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.update(globals()["environ"])
    main(int(os.environ["RANK"]))
