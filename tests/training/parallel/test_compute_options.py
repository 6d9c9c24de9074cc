from __future__ import annotations

import logging
import multiprocessing
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from harness.ports import free_port
from torch import nn

from kfp_pytorch.training.arguments.config import Config, parse
from kfp_pytorch.training.data.datasets import Split
from kfp_pytorch.training.data.decode import LEFT_OUT
from kfp_pytorch.training.data.sampler import Batch
from kfp_pytorch.training.errors import ConfigError
from kfp_pytorch.training.faults.stopping import StopRequest
from kfp_pytorch.training.image import loop
from kfp_pytorch.training.lifecycle import Start
from kfp_pytorch.training.parallel import compute_options
from kfp_pytorch.training.parallel.process_group import ALONE

CPU = torch.device("cpu")
FORKS = multiprocessing.get_context("forkserver")
RANKS = Path(__file__).parents[1] / "programs" / "accumulate_ranks.py"


def batch_of(count, global_size):
    return Batch(torch.arange(count), count, global_size, start=0)


def gradients(accumulate, samples, global_size):
    """The loss and gradients of a linear model, computed in so many parts."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    config = Config(accumulate=accumulate, batch_size=10, dataset="synthetic")
    job = SimpleNamespace(
        config=config, world=ALONE, replica=model, compute=compute_options.choose(config, CPU)
    )
    batch = batch_of(len(samples.labels), global_size)
    loss = loop.backward(job, samples, batch)
    return loss, [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("parts", [2, 4, 5])
def test_a_batch_in_parts_gives_the_gradients_of_the_whole(parts):
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(10, 3, 2, 2, generator=generator)
    labels = torch.randint(5, (10,), generator=generator)
    labels[3] = LEFT_OUT
    expected_loss, expected = gradients(1, Split(images, labels), global_size=14)
    loss, found = gradients(parts, Split(images, labels), global_size=14)
    torch.testing.assert_close(loss, expected_loss)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_no_part_of_a_last_batch_has_one_sample_which_batch_norm_cannot_train_on():
    torch.manual_seed(0)
    seen = []
    norm = nn.BatchNorm1d(12)
    norm.register_forward_pre_hook(lambda _module, given: seen.append(len(given[0])))
    model = nn.Sequential(nn.Flatten(), norm, nn.Linear(12, 5))
    config = Config(accumulate=4, batch_size=8, dataset="synthetic")
    chosen = compute_options.choose(config, CPU)
    job = SimpleNamespace(config=config, world=ALONE, replica=model, compute=chosen)
    for size in (8, 5, 3):
        samples = Split(torch.rand(size, 3, 2, 2), torch.zeros(size).long())
        loop.backward(job, samples, batch_of(size, size))
    assert seen == [2, 2, 2, 2, 3, 2, 3]


def test_a_batch_of_broken_images_alone_has_no_loss_and_changes_nothing():
    samples = Split(torch.rand(4, 3, 2, 2), torch.full((4,), LEFT_OUT))
    loss, found = gradients(1, samples, global_size=4)
    assert loss == 0
    assert all(torch.count_nonzero(gradient) == 0 for gradient in found)


@pytest.mark.parametrize("count", [1, 0])
def test_samples_that_only_keep_a_rank_in_step_change_neither_loss_nor_gradients(count):
    samples = Split(torch.rand(2, 3, 2, 2), torch.tensor([1, 2]))
    own = Split(samples.images[:count], samples.labels[:count])
    kept = loop.counted(samples, Batch(torch.arange(2), count, 9, start=0))
    assert kept.labels.tolist() == [1, LEFT_OUT][:count] + [LEFT_OUT] * (2 - count)
    assert samples.labels.tolist() == [1, 2]
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    config = Config(dataset="synthetic")
    job = SimpleNamespace(
        config=config, world=ALONE, replica=model, compute=compute_options.choose(config, CPU)
    )
    found = []
    for each in (samples, own):
        model.zero_grad()
        loss = loop.backward(job, each, Batch(torch.arange(2), count, 9, start=0))
        found.append([loss, *(parameter.grad.clone() for parameter in model.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_ranks_that_exchange_once_a_batch_get_the_gradients_of_one_process():
    port = free_port()
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = []
    for rank in range(2):
        names = {"environ": {**shared, "RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"}}
        args = (str(RANKS), names, "__main__")
        processes.append(FORKS.Process(target=runpy.run_path, args=args))
        processes[-1].start()
    try:
        for process in processes:
            process.join(300)
    finally:
        for process in processes:
            process.kill()
            process.join()
    assert [process.exitcode for process in processes] == [0, 0]


def test_a_cpu_computes_in_float32_and_the_log_says_why_it_does_not_compile(caplog):
    caplog.set_level(logging.INFO, "kfp_pytorch.training")
    chosen = compute_options.choose(Config(), CPU)
    assert (chosen.dtype, chosen.compile, chosen.fused, chosen.channels_last) == (
        None,
        *[False] * 3,
    )
    assert "not compiled, as compiling takes longer than it saves on a CPU" in caplog.text


def test_each_choice_can_be_made_by_an_argument():
    chosen = compute_options.choose(
        parse(["--precision=bf16", "--no-static-graph", "--compile=off"]), CPU
    )
    assert (chosen.dtype, chosen.static_graph) == (torch.bfloat16, False)
    with pytest.raises(ConfigError, match=r"--precision is 'fp16'; it can be auto, bf16, fp32"):
        parse(["--precision=fp16"])


def test_there_is_no_static_graph_where_parts_of_a_batch_are_not_exchanged():
    assert compute_options.choose(Config(), CPU).static_graph
    assert not compute_options.choose(Config(accumulate=2), CPU).static_graph


def test_a_compiler_that_was_asked_for_and_is_not_there_is_an_error_at_once(monkeypatch):
    monkeypatch.setattr(compute_options.shutil, "which", lambda _name: None)
    with pytest.raises(ConfigError, match=r"--compile is on.*no compiler.*--compile auto"):
        compute_options.choose(Config(compile="on"), CPU)


def test_only_batches_of_the_usual_size_are_compiled(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model, **_: lambda x: compiled.append(len(x)) or x)
    model = compute_options.Compiled(nn.Identity(), batch=4)
    for size in (4, 3, 4, 5):
        assert len(model(torch.zeros(size, 2))) == size
    assert compiled == [4, 4]


def test_a_model_that_cannot_be_compiled_is_trained_as_it_is(monkeypatch, caplog):
    def fail(_images):
        raise torch._dynamo.exc.TorchDynamoException("no ptxas\nmore")

    monkeypatch.setattr(torch, "compile", lambda model, **_: fail)
    model = compute_options.Compiled(nn.Identity(), batch=4)
    assert [len(model(torch.zeros(4, 2))) for _ in range(2)] == [4, 4]
    assert caplog.text.count("going on without compiling, which failed: no ptxas") == 1


@pytest.mark.slow
def test_a_run_in_bf16_learns_the_digits_as_well(tmp_path):
    torch.set_num_threads(1)
    config = Config(output=str(tmp_path), epochs=2, precision="bf16", optimizer="adamw", lr=0.005)
    result = loop.train(Start(config, ALONE, StopRequest()))
    assert result["metrics"]["accuracy"] > 0.9


def test_more_parts_than_a_batch_can_be_split_into_are_refused():
    with pytest.raises(ConfigError, match="--accumulate is 8, and --batch-size 10 leaves"):
        Config(accumulate=8, batch_size=10)
