"""What makes a program faster on a CPU leaves its answers as they are."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from kfp_pytorch.serving import export
from kfp_pytorch.serving.predictor import Answers, Predictor
from kfp_pytorch.serving.protocol import v1
from kfp_pytorch.serving.protocol.query import Query
from kfp_pytorch.serving.speed import tuning
from kfp_pytorch.serving.speed.batch_norms import fold_batch_norms
from kfp_pytorch.serving.speed.tuning import tune


class Network(nn.Module):
    """Convolutions, batch norms and what is usual between them; an answer of four numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one = nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second, self.two = nn.Conv2d(8, 8, 3, padding="same", groups=2), nn.BatchNorm2d(8)
        self.last = nn.Linear(8, 4)

    def features(self, image: Tensor) -> Tensor:
        found = torch.relu_(self.one(self.first(image)))
        return torch.relu_(self.two(self.second(found)).add_(found))

    def forward(self, image: Tensor) -> Tensor:
        return self.last(self.features(image).mean((2, 3)))


class Features(Network):
    """Answers with images."""

    def forward(self, image: Tensor) -> Tensor:
        return self.features(image)


class Views(Network):
    """Looks at its features as rows, which is possible only where the channels are not last."""

    def forward(self, image: Tensor) -> Tensor:
        found = self.features(image)
        return found.view(found.shape[0], -1)[:, :4]


class Reads(nn.Module):
    """A convolution and a batch norm, of which something else reads a part."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self.part = part
        self.convolution, self.norm = nn.Conv2d(1, 1, 3), nn.BatchNorm2d(1)

    def forward(self, image: Tensor) -> Tensor:
        found = self.convolution(image)
        other = {
            "output": lambda: found,
            "weight": lambda: self.convolution.weight,
            "convolution": lambda: self.convolution(image + 1).relu(),
            "norm": lambda: self.norm(image)[:, :, 1:-1, 1:-1],
            "mean": lambda: self.norm.running_mean,
        }
        return self.norm(found) + other[self.part]().mean()


def trained(module: nn.Module) -> nn.Module:
    """The module with numbers in its batch norms that are not those of the start."""
    torch.manual_seed(0)
    for each in module.modules():
        if isinstance(each, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            for tensor in (each.weight, each.bias, each.running_mean, each.running_var):
                nn.init.uniform_(tensor, 0.5, 2)
    return module.eval()


def traced(module: nn.Module, image: Tensor, **free: Any) -> GraphModule:
    """The module's program; `free` are the sizes that are free beside the batch, as `_2`."""
    sizes = {0: torch.export.Dim("batch", min=1)}
    sizes |= {int(name[1:]): size for name, size in free.items()}
    program = torch.export.export(trained(module), (image,), dynamic_shapes=(sizes,)).module()
    return program.requires_grad_(False)


def rows(count: int) -> Tensor:
    return torch.rand((count, 1, 8, 8), generator=torch.Generator().manual_seed(count))


def norms(program: GraphModule) -> int:
    norm = torch.ops.aten.batch_norm.default
    return len(program.graph.find_nodes(op="call_function", target=norm))


def has_channels_last(program: GraphModule) -> bool:
    weights = [each for each in program.parameters() if each.dim() == 4 and each.shape[1] > 1]
    assert weights
    return not any(weight.is_contiguous() for weight in weights)


def slow_if(last: bool, program: GraphModule) -> Callable[[Tensor], Tensor]:
    """Computes, and takes longer with the channels last, or with the layout of the start."""

    def compute(batch: Tensor) -> Tensor:
        until = time.thread_time() + (0.01 if has_channels_last(program) == last else 0)
        while time.thread_time() < until:
            pass
        return batch

    return compute


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (Network(), (1, 8, 8)),
        (nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3)), (2, 9)),
        (nn.Sequential(nn.Conv3d(1, 3, 2, bias=False), nn.BatchNorm3d(3)), (1, 4, 4, 4)),
        (nn.Sequential(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3)).double(), (1, 4, 4)),
    ],
)
def test_folded_batch_norms_give_the_same_answers_and_can_come_back(
    module: nn.Module, shape: tuple[int, ...]
) -> None:
    image = torch.rand((5, *shape), dtype=next(module.parameters()).dtype)
    program = traced(module, image)
    before, count = program(image), norms(program)
    undo = fold_batch_norms(program)
    assert undo is not None
    assert norms(program) == 0
    assert program(image).dtype == before.dtype
    assert torch.allclose(program(image), before, atol=1e-5)
    undo()
    assert norms(program) == count
    assert torch.equal(program(image), before)


@pytest.mark.parametrize("part", ["output", "weight", "convolution", "norm", "mean"])
def test_a_batch_norm_stays_where_something_else_reads_a_part(part: str) -> None:
    program = traced(Reads(part), rows(2))
    count = norms(program)
    assert fold_batch_norms(program) is None
    assert norms(program) == count


def test_a_batch_norm_of_the_batchs_own_mean_stays() -> None:
    class Trains(Network):
        def features(self, image: Tensor) -> Tensor:
            found = self.first(image)
            return nn.functional.batch_norm(found, None, None, self.one.weight, training=True)

    assert fold_batch_norms(traced(Trains(), rows(2))) is None


@pytest.mark.parametrize("is_faster", [True, False])
def test_the_faster_layout_is_taken_and_answers_stay_the_same(is_faster: bool) -> None:
    program = traced(Network(), rows(2))
    before = program(rows(8))
    tune(program, rows, slow_if(not is_faster, program), max_batch=64)
    assert has_channels_last(program) == is_faster
    assert norms(program) == 0
    assert torch.allclose(program(rows(8)), before, atol=1e-5)


def test_a_program_that_takes_no_other_layout_keeps_its_own() -> None:
    program = traced(Views(), rows(2))
    before = program(rows(8))
    tune(program, rows, slow_if(False, program), max_batch=64)
    assert not has_channels_last(program)
    assert torch.allclose(program(rows(8)), before, atol=1e-5)


def test_a_view_that_other_sizes_may_not_allow_keeps_the_layout() -> None:
    small, free = rows(2)[:, :, :1, :1], torch.export.Dim("side", min=1)
    program = traced(Views(), rows(2), _2=free, _3=free)
    tune(program, lambda count: small[:count], slow_if(False, program), max_batch=2)
    assert not has_channels_last(program)
    assert program(rows(8)).shape == (8, 4)


def test_answers_that_differ_undo_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_TOLERANCE", -1)
    program = traced(Network(), rows(2))
    before = program(rows(8))
    tune(program, rows, slow_if(False, program), max_batch=64)
    assert not has_channels_last(program)
    assert torch.equal(program(rows(8)), before)


def test_an_error_on_the_way_leaves_the_program_with_its_answers() -> None:
    def fails(_: Tensor) -> Tensor:
        raise MemoryError("too small")

    program = traced(Network(), rows(2))
    before = program(rows(8))
    tune(program, rows, fails, max_batch=64)
    assert not has_channels_last(program)
    assert torch.allclose(program(rows(8)), before, atol=1e-5)


def test_a_program_that_takes_long_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_ROW_SECONDS", 0)
    program = traced(Network(), rows(2))
    tune(program, rows, slow_if(False, program), max_batch=64)
    assert norms(program) == 2
    assert not has_channels_last(program)


@pytest.mark.parametrize("bf16", [False, True])
def test_the_warm_up_tunes_and_leaves_answers_and_gradients(
    write_export: Callable[..., Path], tmp_path: Path, bf16: bool
) -> None:
    spec = [{"name": "image", "shape": [-1, 1, 8, 8], "datatype": "FP32"}]
    about = {"preprocessing": {"values": [0, 1]}, "inputs": spec}
    module = trained(Network())
    served = Predictor(
        export.load(write_export(tmp_path, module, rows(2), **about)), bf16=bf16, max_batch=8
    )
    served.warm_up()
    assert isinstance(served.export.run, GraphModule)
    assert norms(served.export.run) == 0
    (answers,) = served.answer([rows(5).numpy()])
    assert isinstance(answers, Answers)
    expected = module(rows(5)).detach().numpy()
    assert np.allclose(answers.output, expected, atol=0.05 if bf16 else 1e-5)
    # As an explanation asks for them.
    gradients = []
    for run in (served.export.run, module):
        image = rows(5).requires_grad_()
        gradients += torch.autograd.grad(run(image)[:, 1].sum(), image)
    assert torch.allclose(*gradients, atol=1e-5)


def test_an_answer_of_images_is_written_whatever_its_layout(
    write_export: Callable[..., Path], tmp_path: Path
) -> None:
    outputs = [{"name": "features", "shape": [-1, 8, 8, 8], "datatype": "FP32"}]
    inputs = [{"name": "image", "shape": [-1, 1, 8, 8], "datatype": "FP32"}]
    written = write_export(
        tmp_path, trained(Features()), rows(2), inputs=inputs, outputs=outputs, classes=[]
    )
    served = Predictor(export.load(written))
    for parameter in served.export.run.parameters():  # type: ignore[attr-defined]
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    (answers,) = served.answer([rows(3).numpy()])
    assert isinstance(answers, Answers)
    body = json.loads(v1.write(answers, served.export, Query([])))
    assert np.allclose(body["predictions"], answers.output)
