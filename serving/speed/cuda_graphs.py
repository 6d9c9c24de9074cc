"""A model's calls as CUDA graphs: one for each batch size, started as a whole.

A network of a hundred layers is hundreds of kernels. To start each from Python takes longer than a
small batch computes, and holds the interpreter's lock, for which the server's own thread waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch

Call = Callable[[torch.Tensor], torch.Tensor]
logger = logging.getLogger("kserve")


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    rows: torch.Tensor  # what it reads
    output: torch.Tensor  # what it writes


class Graphs:
    """The graphs of one model. Safe to use from several threads."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._captured: dict[int, _Captured] = {}
        # Graphs of several sizes use the same memory, one after the other.
        self._pool = torch.cuda.graph_pool_handle()
        self._lock = threading.Lock()
        self._usable = True

    def capture(self, rows: torch.Tensor) -> None:
        """Captures a batch of this size, which was computed before. Raises OutOfMemoryError."""
        if not self._usable:
            return
        graph, own = torch.cuda.CUDAGraph(), rows.clone()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                output = self._call(own)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a model may do what no graph can, such as read a number
            logger.info("the model is not started as a CUDA graph: %s", error)
            self._usable = False
            self._captured.clear()
            return
        self._captured[len(rows)] = _Captured(graph, own, output)

    def run(self, rows: torch.Tensor) -> torch.Tensor | None:
        """Computes rows with the smallest graph that has room for them; None: there is none."""
        size = min((size for size in self._captured if size >= len(rows)), default=0)
        if not size:
            return None
        found = self._captured[size]
        with self._lock:
            found.rows[: len(rows)].copy_(rows)
            found.graph.replay()
            return found.output[: len(rows)].clone()
