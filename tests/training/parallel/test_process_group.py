"""Where a process is in its job, and on its node."""

from __future__ import annotations

import pytest
import torch

from kfp_pytorch.training.errors import ConfigError
from kfp_pytorch.training.parallel.process_group import joined, pick_device


def test_a_ranks_gpu_is_that_of_its_place_in_the_node(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("RANK", "1")
    assert pick_device(0) == torch.device("cuda", 0)
    with pytest.raises(ConfigError, match="local rank 1 has no GPU"):
        pick_device(1)


def test_a_rank_that_is_not_told_its_place_in_the_node_is_the_nodes_first(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with joined(60) as world:
        assert (world.rank, world.local_rank) == (1, 0)
