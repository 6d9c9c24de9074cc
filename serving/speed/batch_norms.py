"""Folds the batch norms of a program into the convolutions before them.

A batch norm that does not train multiplies each channel by a number and adds another. So do the
weight and the bias of a convolution.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import torch
from torch.fx import Graph, GraphModule
from torch.nn import Parameter
from torch.nn.utils.fusion import fuse_conv_bn_weights

_BATCH_NORM = torch.ops.aten.batch_norm.default
_CONVOLUTIONS = {
    getattr(getattr(torch.ops.aten, f"conv{sizes}d"), overload)
    for sizes in (1, 2, 3)
    for overload in ("default", "padding")
}
# The product of two numbers of a smaller type is too coarse.
_TYPES = ({torch.float32}, {torch.float64})


def fold_batch_norms(program: GraphModule) -> Callable[[], None] | None:
    """Folds each batch norm that alone reads a convolution, if nothing else reads their tensors.

    Returns what undoes it; None: there was none to fold. Not to be called in inference mode, whose
    tensors have no part in gradients.
    """
    graph = copy.deepcopy(program.graph)
    folded: dict[str, Parameter] = {}
    for convolution, norm in _pairs(graph):
        nodes = _read(convolution, norm)
        tensors: list[Any] = [
            None if node is None else attrgetter(node.target)(program) for node in nodes
        ]
        weight, bias, mean, variance, factor, addend = tensors
        types = {tensor.dtype for tensor in tensors if tensor is not None}
        are_parameters = isinstance(weight, Parameter) and isinstance(addend, Parameter)
        if types not in _TYPES or not are_parameters:
            continue
        product = fuse_conv_bn_weights(weight, bias, mean, variance, norm.args[7], factor, addend)
        # What was the norm's addend becomes the convolution's bias.
        own, added = nodes[0], nodes[-1]
        folded[own.target], folded[added.target] = product
        convolution.prepend(added)
        convolution.args = (*convolution.args[:2], added, *convolution.args[3:])
        norm.replace_all_uses_with(convolution)
        graph.erase_node(norm)
    if not folded:
        return None
    given, given_graph = {name: program.get_parameter(name) for name in folded}, program.graph
    _put(program, graph, folded)
    return lambda: _put(program, given_graph, given)


def _pairs(graph: Graph) -> Iterator[tuple[Any, Any]]:
    """Each convolution that only a batch norm reads, with it, if no others read their tensors."""
    uses = Counter(node.target for node in graph.find_nodes(op="get_attr") for _ in node.users)
    for norm in graph.find_nodes(op="call_function", target=_BATCH_NORM):
        convolution, trains = norm.args[0], norm.args[5]
        if convolution.target not in _CONVOLUTIONS or len(convolution.users) > 1:
            continue
        if trains or convolution.kwargs or norm.kwargs:
            continue
        weight, bias, *others = _read(convolution, norm)
        others += [weight] if bias is None else [weight, bias]
        if all(node is not None and uses[node.target] == 1 for node in others):
            yield convolution, norm


def _read(convolution: Any, norm: Any) -> list[Any]:
    """What the two read: weight, bias or None, the norm's mean, variance, factor and addend."""
    _, weight, *rest = convolution.args
    factor, addend, mean, variance = norm.args[1:5]
    return [weight, rest[0] if rest else None, mean, variance, factor, addend]


def _put(program: GraphModule, graph: Graph, parameters: dict[str, Parameter]) -> None:
    for name, parameter in parameters.items():
        owner, _, attribute = name.rpartition(".")
        setattr(program.get_submodule(owner), attribute, parameter)
    program.graph = graph
