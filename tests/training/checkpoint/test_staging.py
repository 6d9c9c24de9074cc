"""What a checkpoint is copied to, on a CPU and, where there is one, a GPU."""

from __future__ import annotations

import unittest.mock
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager

from kfp_pytorch.training.checkpoint.staging import Staging, local_parts

GPU = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
)


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_a_copy_has_the_state_at_its_call_while_training_continues(device: str) -> None:
    width = 4096 if device == "cuda" else 8
    model = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    staging = Staging(torch.device(device), model, optimizer)

    def train() -> None:
        model(torch.randn(8, width, device=device)).sum().backward()
        optimizer.step()

    train()
    for _ in range(4):
        state = {"model": dict(model.state_dict()), "optimizer": optimizer.state_dict()["state"][0]}
        expected = {name: part.clone() for name, part in local_parts(state)}
        copied = staging.copy(state)
        train()
        train()
        staging.finish()
        told = dict(local_parts(copied))
        assert told.keys() == expected.keys()
        for name, part in told.items():
            assert torch.equal(part, expected[name].to("cpu")), name


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_the_first_copy_uses_memory_that_was_allocated_during_training(device: str) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    staging = Staging(torch.device(device), model, optimizer)

    def train() -> dict[str, dict[str, torch.Tensor]]:
        model(torch.randn(8, 64, device=device)).sum().backward()
        optimizer.step()
        return {"model": dict(model.state_dict()), "optimizer": optimizer.state_dict()["state"][0]}

    with ThreadPoolExecutor(1) as thread:
        making = thread.submit(staging.prepare, train())
        while not making.done():
            train()
    making.result()
    state = train()
    expected = {name: part.clone() for name, part in local_parts(state)}
    with unittest.mock.patch.object(DefaultStager, "stage", side_effect=AssertionError):
        copied = dict(local_parts(staging.copy(state)))
    train()
    staging.finish()
    for name, part in expected.items():
        assert torch.equal(copied[name], part.to("cpu")), name
    assert copied["model.0.weight"].is_pinned() == (device == "cuda")
