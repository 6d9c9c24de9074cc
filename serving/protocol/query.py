"""What a request asks for, whatever protocol it came in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_pytorch.serving.errors import BadRequest
from kfp_pytorch.serving.export import Export
from kfp_pytorch.serving.predictor import Answers
from kfp_pytorch.serving.tensors import Array

TOP = "top_k"
# About what class, label and score of one row take in an answer.
_BYTES_OF_A_CLASS = 50


@dataclass(frozen=True)
class Query:
    """A request that was checked."""

    parts: list[Array]  # its rows, in order, as arrays of one shape each
    top: int = 1  # how many classes of a row are asked for
    id: str = ""  # the request's own name for itself
    # The names of the outputs to send, and whether as bytes; empty for the usual ones.
    outputs: list[tuple[str, bool]] = field(default_factory=list)
    is_binary: bool = False  # whether outputs are sent as bytes where nothing else is said


def size_of(answers: Answers, query: Query) -> int:
    """About how many bytes the answer to a query will have."""
    if answers.classes is None or query.outputs:
        return answers.output.nbytes
    return _BYTES_OF_A_CLASS * len(answers.classes) * query.top


def top_of(parameters: Mapping[str, Any], export: Export) -> int:
    """The parameter `top_k` of a request: how many classes it asks for. Raises BadRequest."""
    if TOP not in parameters:
        return 1
    top, most = parameters[TOP], len(export.classes)
    if type(top) is not int or not 1 <= top <= most:
        limits = f"a whole number from 1 to {most}" if most else "left out, without classes"
        raise BadRequest(f"parameters.{TOP}: must be {limits}, not {top!r:.80}")
    return top
