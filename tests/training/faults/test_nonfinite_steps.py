"""Steps that are no finite numbers: skipped as if they had not been, or the end of training."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.errors import DivergedError
from kfp_pytorch.training.faults.nonfinite_steps import Skipper, Stopper, open_guard
from kfp_pytorch.training.faults.stopping import StopRequest
from kfp_pytorch.training.image import loop
from kfp_pytorch.training.lifecycle import Start
from kfp_pytorch.training.parallel.process_group import ALONE

NAN, INF = float("nan"), float("inf")


def trained(inputs, fused, allowed=3, optimizer=torch.optim.SGD):
    """What becomes of a model with batch norm that is trained on these inputs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    options = {"momentum": 0.9} if optimizer is torch.optim.SGD else {}
    steps = optimizer(model.parameters(), lr=0.1, fused=fused, **options)
    guard = open_guard(ALONE, model, steps, allowed)
    for number, value in enumerate(inputs, 1):
        steps.zero_grad()
        loss = model(torch.tensor([[value, 1.0], [2.0, 3.0]])).sum()
        loss.backward()
        guard.step(number, loss.detach())
    return model, steps, guard


def found(guard):
    """The new bad steps, each with its rank, and whether training must stop."""
    seen = []
    why = guard.why_stop(
        guard.bad_steps().tolist(), lambda step, rank: seen.append((step, rank)) or "a batch"
    )
    return seen, why


def assert_same(first, second):
    for name, value in first.state_dict().items():
        assert torch.equal(second.state_dict()[name], value), name


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_skipped_step_changes_neither_weights_nor_momentum_nor_batch_norm(fused, optimizer):
    clean, clean_steps, _guard = trained([1.0, 4.0, 5.0], fused, optimizer=optimizer)
    # The first step, too: torch's fused kernels leave their momentum unset then.
    marred, steps, guard = trained([NAN, 1.0, INF, 4.0, 5.0], fused, optimizer=optimizer)
    assert found(guard) == ([(1, 0), (3, 0)], "")
    assert found(guard) == ([], "")
    assert_same(clean, marred)
    for ours, theirs in zip(
        steps.state_dict()["state"].values(),
        clean_steps.state_dict()["state"].values(),
        strict=True,
    ):
        for name, value in theirs.items():
            assert torch.equal(ours[name], value), name


def test_a_loss_that_is_infinite_with_finite_gradients_is_skipped_too():
    model = nn.Linear(1, 1)
    guard = Skipper(ALONE, model, torch.optim.SGD(model.parameters(), lr=1.0), 1)
    before = model.weight.clone()
    model(torch.ones(1, 1)).sum().backward()
    guard.step(1, torch.tensor(INF))
    assert torch.equal(model.weight, before)
    assert found(guard) == ([(1, 0)], "")


def test_one_step_more_than_may_be_skipped_is_known_by_its_number():
    _model, _steps, guard = trained([NAN] * 5, fused=False, allowed=2)
    assert found(guard) == (
        [(1, 0), (2, 0), (3, 0)],
        "the loss of step 3 is not a finite number: a batch, and 2 steps were skipped before",
    )


def test_without_skipping_the_first_bad_step_is_recorded_and_nothing_is_copied():
    _model, _steps, guard = trained([1.0, NAN, NAN], fused=False, allowed=0)
    assert isinstance(guard, Stopper)
    assert found(guard) == ([(2, 0)], "the loss of step 2 is not a finite number: a batch")


@pytest.fixture
def spoiled(monkeypatch):
    """Makes the losses of these steps infinite, as an image full of them would."""

    def spoil(*numbers):
        backward, seen = loop.backward, [0]

        def spoiled_backward(*arguments):
            seen[0] += 1
            loss = backward(*arguments)
            return loss * INF if seen[0] in numbers else loss

        monkeypatch.setattr(loop, "backward", spoiled_backward)

    return spoil


def run(output, **arguments):
    torch.set_num_threads(1)
    config = Config(output=str(output), epochs=1, max_train_samples=500, log_every=3, **arguments)
    return loop.train(Start(config, ALONE, StopRequest()))


def test_a_run_that_may_skip_continues_and_logs_the_samples(spoiled, tmp_path, caplog):
    spoiled(2, 5)
    with caplog.at_level(logging.WARNING):
        result = run(tmp_path, skip_bad_steps=2)
    assert result["step"] == 8
    assert "skipped step 1 of at most 2: the loss of step 2 is not a finite number" in caplog.text
    assert "step 5 is not a finite number: epoch 0, batch 4, rank 0, samples [" in caplog.text
    assert result["metrics"]["loss"] < 10


def test_a_run_that_has_skipped_what_it_may_stops_at_the_next_and_saves_nothing(spoiled, tmp_path):
    spoiled(2, 4)
    with pytest.raises(DivergedError, match=r"step 4 is not a finite.*1 steps were skipped before"):
        run(tmp_path, skip_bad_steps=1)
    assert not list(tmp_path.glob("checkpoints/step-*"))
