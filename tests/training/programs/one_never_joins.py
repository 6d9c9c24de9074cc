"""Lets rank 1 end before it joins, and rank 0 say that it waits for it. Run by `runpy`."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

from kfp_pytorch.training import rank

join = dist.init_process_group


def joining(*arguments: Any, **options: Any) -> None:
    print("joining", flush=True)
    join(*arguments, **options)


if os.environ["RANK"] == "1":
    os._exit(0)
rank._JOIN_SECONDS = 0.1
dist.init_process_group = joining
