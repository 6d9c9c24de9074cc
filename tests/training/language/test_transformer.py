"""The transformer by itself, on one process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional

from kfp_pytorch.training.errors import ConfigError
from kfp_pytorch.training.language import chunked_loss
from kfp_pytorch.training.language.chunked_loss import linear_cross_entropy
from kfp_pytorch.training.language.text import ByteText, TextBatches, standard_library
from kfp_pytorch.training.language.trainable import StepOptions, build
from kfp_pytorch.training.language.transformer import (
    PRESETS,
    Transformer,
    TransformerConfig,
    preset,
)
from kfp_pytorch.training.parallel.plan import ParallelPlan
from kfp_pytorch.training.telemetry.flops import peak_flops, utilisation

CPU = torch.device("cpu")
ALONE = ParallelPlan()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The model is so small that threads would mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def model() -> Transformer:
    model = Transformer(preset("tiny"))
    model.init_weights(0)
    return model


def tokens(batch: int, seq: int) -> torch.Tensor:
    return torch.randint(0, 256, (batch, seq), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", PRESETS)
def test_the_parameters_of_a_preset_are_those_of_the_model(name):
    config = preset(name)
    with torch.device("meta"):
        model = Transformer(config)
    assert sum(p.numel() for p in model.parameters()) == config.parameters


def test_the_operations_a_token_asks_for_are_counted_with_causal_attention_once():
    config = preset("1.4b")
    multiplied = config.parameters - config.vocab * config.dim
    assert config.parameters == 1_364_297_728
    assert config.flops_per_token == 6 * multiplied + 6 * 24 * 2048 * 2048


@pytest.mark.parametrize(
    ("card", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA A10G", None),
        ("CPU", None),
    ],
)
def test_the_peak_of_a_card_is_known_by_its_full_name(card, peak):
    assert peak_flops(card) == peak


def test_utilisation_is_left_out_where_the_peak_is_unknown():
    assert utilisation(1000, 98.9e9, "NVIDIA H100 80GB HBM3") == pytest.approx(0.1)
    assert utilisation(1000, 98.9e9, "a card of tomorrow") is None


def test_a_token_sees_those_before_it_and_not_those_after(model):
    first = tokens(1, 32)
    second = first.clone()
    second[0, 20:] = (second[0, 20:] + 1) % 256
    one, two = model(first), model(second)
    torch.testing.assert_close(one[:, :20], two[:, :20])
    assert not torch.allclose(one[:, 20:], two[:, 20:])


def test_the_same_bytes_in_another_order_give_another_answer(model):
    x = tokens(1, 16)
    other_order = torch.cat([x[:, :15].flip(1), x[:, 15:]], 1)
    assert not torch.allclose(model(x)[0, -1], model(other_order)[0, -1])


def test_the_loss_and_its_gradients_are_those_of_all_logits_at_once(model, monkeypatch):
    monkeypatch.setattr(chunked_loss, "CHUNK_TOKENS", 7)
    x, targets = tokens(3, 20), tokens(3, 21)[:, 1:]
    loss = model(x, targets)
    (loss * 3).backward()
    chunked = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    plain = functional.cross_entropy(model(x).flatten(0, 1), targets.flatten())
    (plain * 3).backward()
    torch.testing.assert_close(loss, plain)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(chunked[name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_the_loss_without_gradients_is_the_same():
    hidden, weight = torch.randn(50, 16), torch.randn(31, 16)
    targets = torch.randint(0, 31, (50,))
    expected = functional.cross_entropy(hidden @ weight.T, targets)
    torch.testing.assert_close(linear_cross_entropy(hidden, weight, targets), expected)
    hidden.requires_grad_()
    with torch.no_grad():
        torch.testing.assert_close(linear_cross_entropy(hidden, weight, targets), expected)


def test_weights_come_from_the_seed_and_not_from_the_order_in_which_they_are_made():
    def weights(layers: range | None, seed: int) -> dict[str, torch.Tensor]:
        stage = Transformer(preset("tiny"), layers)
        stage.init_weights(seed)
        return dict(stage.state_dict())

    whole, last, other = weights(None, 0), weights(range(2, 4), 0), weights(None, 1)
    assert "embedding.weight" not in last
    assert "head.weight" in last
    for name, value in last.items():
        assert torch.equal(value, whole[name])
        assert name.endswith("norm.weight") or not torch.equal(value, other[name])


def test_a_model_made_on_the_meta_device_is_the_one_made_at_once(model):
    with torch.device("meta"):
        other = Transformer(preset("tiny"))
    other.to_empty(device=CPU)
    other.init_weights(0)
    assert torch.equal(other(tokens(2, 8)), model(tokens(2, 8)))


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputing_changes_what_is_kept_but_not_the_results(recompute):
    def train(recompute: str) -> tuple[list[float], int]:
        trainable = build(preset("tiny"), ALONE, CPU, StepOptions(bf16=False, recompute=recompute))
        kept = 0

        def count(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal kept
            kept += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            losses = [trainable.step(tokens(2, 33)).item() for _ in range(3)]
        return losses, kept

    (plain, all_kept), (recomputed, less_kept) = train("none"), train(recompute)
    assert recomputed == pytest.approx(plain, rel=1e-6)
    if recompute == "full":
        # What selective recomputing keeps does not pass these hooks.
        assert less_kept < all_kept / 2


def test_microbatches_add_up_to_the_batch():
    curves = []
    for microbatches in (1, 4):
        options = StepOptions(bf16=False, microbatches=microbatches)
        trainable = build(preset("tiny"), ALONE, CPU, options)
        curves.append([trainable.step(tokens(8, 17)).item() for _ in range(4)])
    assert curves[1] == pytest.approx(curves[0], rel=1e-5)


def test_gradients_are_limited_by_their_global_norm():
    options = StepOptions(bf16=False, clip_norm=0.01, learning_rate=0.0)
    trainable = build(preset("tiny"), ALONE, CPU, options)
    trainable.forward_backward(tokens(2, 17))
    grads = [p.grad for p in trainable.model.parameters()]
    before = torch.sqrt(sum((g.double() ** 2).sum() for g in grads))
    norm = trainable.clip_and_step()
    assert norm.item() == pytest.approx(before.item(), rel=1e-5)
    assert all(p.grad is None for p in trainable.model.parameters())
    # The gradients that the optimizer saw.
    moments = [state["exp_avg"] / 0.1 for state in trainable.optimizer.state.values()]
    assert torch.sqrt(sum((m**2).sum() for m in moments)).item() == pytest.approx(0.01, rel=1e-3)


def test_it_learns_from_the_standard_library():
    text = ByteText.read(standard_library()[:30])
    batches = TextBatches(text, seq_len=32, batch_size=8)
    trainable = build(preset("tiny"), ALONE, CPU, StepOptions(learning_rate=3e-3, bf16=False))
    losses = [trainable.step(batch).item() for batch in itertools.islice(batches, 50)]
    assert losses[0] == pytest.approx(5.55, abs=0.1)  # The log of 256: it knows nothing yet.
    assert sum(losses[-5:]) / 5 < 3.3
    assert trainable.evaluate(next(batches)).item() < 3.3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: preset("gpt"), "no language model is called 'gpt'; there are tiny"),
        (lambda: TransformerConfig(dim=65, heads=4), "dim=65 over heads=4"),
        (lambda: TransformerConfig(layers=0), "layers is 0"),
        (lambda: StepOptions(recompute="some"), "recompute is 'some'"),
        (lambda: StepOptions(learning_rate=float("nan")), "learning_rate is nan"),
        (lambda: build(preset("tiny"), ParallelPlan(tp=2), CPU), "for 2 ranks; the job has 1"),
        (lambda: build(preset("tiny"), ParallelPlan(sharded=True), CPU), "needs a process group"),
        (
            lambda: build(preset("tiny"), ALONE, CPU, StepOptions(microbatches=3)).step(
                tokens(4, 9)
            ),
            "a batch of 4 cannot be split into 3 microbatches",
        ),
        (
            lambda: build(preset("tiny"), ALONE, CPU).step(tokens(1, 66)),
            "65 tokens, more than .* seq_len=64",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
