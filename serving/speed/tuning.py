"""Makes a program faster on a CPU, where its answers stay the same.

Batch norms are folded into convolutions. Where it is faster, the weights of convolutions are laid
out with the channels last: the CPU's library then lays out the images like this, too, and need not
rearrange them for each convolution.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import torch
from torch.fx import GraphModule
from torch.nn import Parameter

from kfp_pytorch.serving.speed.batch_norms import fold_batch_norms

# All is measured with one thread: several wait for each other whenever another program runs.
# The rows of a batch that is measured; fewer, where it would take longer than so many seconds.
_ROWS, _BATCH_SECONDS = 8, 0.25
# A program that takes longer for one row is left alone: to measure it would delay the start.
_ROW_SECONDS = 0.5
# Calls with each layout: the first prepares, and no more than three are made after some seconds.
_FEWEST_CALLS, _MOST_CALLS, _SECONDS = 3, 10, 0.5
# How many times as fast another layout must be.
_WORTH_LAYOUT = 1.05
# What answers may differ by, as a part of the largest: numbers are added in another order.
_TOLERANCE = 1e-3

Compute = Callable[[torch.Tensor], torch.Tensor]
logger = logging.getLogger("kserve")


def tune(
    program: GraphModule, rows: Callable[[int], torch.Tensor], compute: Compute, max_batch: int
) -> None:
    """Makes a program faster, or leaves it as it is. It takes some seconds at most.

    `rows`: makes so many rows to try it with. `compute`: computes a batch, of `max_batch` rows at
    most, as those of requests are computed. Not to be called in inference mode.
    """
    if not any(parameter.dim() > 2 for parameter in program.parameters()):
        return  # no convolution has such weights
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        size = min(max_batch, _size(program, rows))
        if size:
            batch = rows(size)
            _tune(program, rows(2), lambda: compute(batch))
    except Exception as error:  # memory is too small, or the program does not take such values
        logger.info("the program is left as it is: %s", error)
    finally:
        torch.set_num_threads(threads)


def _tune(program: GraphModule, rows: torch.Tensor, compute: Callable[[], object]) -> None:
    expected = _answers(program, rows)

    def is_same() -> bool:
        return all(map(_are_close, _answers(program, rows), expected))

    _fold(program, is_same)
    _lay_out(program, is_same, compute)


def _size(program: GraphModule, rows: Callable[[int], torch.Tensor]) -> int:
    """How many rows a batch to measure has; 0: one row takes too long."""
    row = rows(1)
    with torch.inference_mode():
        seconds = min(_seconds(lambda: program(row)) for _ in range(2))
    return 0 if seconds > _ROW_SECONDS else max(1, min(_ROWS, int(_BATCH_SECONDS / seconds)))


def _answers(program: GraphModule, rows: torch.Tensor) -> list[torch.Tensor]:
    """The answers to all rows, and to the first: a tensor with one row has views of its own."""
    with torch.inference_mode():
        return [program(rows), program(rows[:1])]


def _are_close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether answers are the same but for rounding. Those that are not finite are not."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    difference = (found.double() - expected.double()).abs().max()
    return bool(difference <= _TOLERANCE * expected.double().abs().max())


def _fold(program: GraphModule, is_same: Callable[[], bool]) -> None:
    undo, keep = fold_batch_norms(program), False
    if undo is None:
        return
    try:
        keep = is_same()
    finally:
        if not keep:
            undo()


def _lay_out(
    program: GraphModule, is_same: Callable[[], bool], compute: Callable[[], object]
) -> None:
    weights = [
        parameter
        for parameter in program.parameters()
        if parameter.dim() == 4
        and parameter.is_contiguous()
        and not parameter.is_contiguous(memory_format=torch.channels_last)
    ]
    if not weights or _has_view_of_free_size(program):
        return
    given = [weight.data for weight in weights]
    last = [tensor.contiguous(memory_format=torch.channels_last) for tensor in given]
    keep = False
    try:
        _put(weights, last)
        if is_same():
            taken = _seconds_of_each(weights, (given, last), compute)
            keep = taken[0] > _WORTH_LAYOUT * taken[1]
            logger.info("a batch takes %.3g s; with channels last %.3g s", *taken)
    finally:
        _put(weights, last if keep else given)


def _has_view_of_free_size(program: GraphModule) -> bool:
    """Whether there may be views that are possible with the sizes that are tried, but no others."""
    inputs = [node.meta["val"].shape for node in program.graph.find_nodes(op="placeholder")]
    if all(isinstance(size, int) for shape in inputs for size in shape[1:]):
        return False
    graphs = [each.graph for each in program.modules() if isinstance(each, GraphModule)]
    return any("view" in str(node.target) for graph in graphs for node in graph.nodes)


def _seconds_of_each(
    weights: Sequence[Parameter],
    layouts: Sequence[Sequence[torch.Tensor]],
    compute: Callable[[], object],
) -> list[float]:
    """How long a call takes with each layout. They take turns, as CPUs change their speed."""
    taken: list[list[float]] = [[] for _ in layouts]
    until = time.perf_counter() + _SECONDS
    for count in range(_MOST_CALLS):
        if count >= _FEWEST_CALLS and time.perf_counter() > until:
            break
        for seconds, layout in zip(taken, layouts, strict=True):
            _put(weights, layout)
            seconds.append(_seconds(compute))
    return [min(seconds[1:]) for seconds in taken]


def _put(weights: Sequence[Parameter], layout: Sequence[torch.Tensor]) -> None:
    for weight, tensor in zip(weights, layout, strict=True):
        weight.data = tensor


def _seconds(work: Callable[[], object]) -> float:
    """How long this thread computes. What other programs take of the CPU does not count."""
    began = time.thread_time()
    work()
    return time.thread_time() - began
