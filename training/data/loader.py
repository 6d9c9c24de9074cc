"""Worker processes that read image files, and decode them unless the GPU does.

A worker makes a piece of a batch, not a batch: so the first batch is there as soon as all workers
together have made it, and little shared memory is in use.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.context import BaseContext
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.data import decode
from kfp_pytorch.training.data.augment import View, centre_view, random_view
from kfp_pytorch.training.data.encoded_images import EncodedSplit
from kfp_pytorch.training.errors import DataError
from kfp_pytorch.training.resources import usable_cores

# Images that a worker makes at a time, in about a tenth of a second.
PIECE = 64
_MAX_WORKERS = 32
# What the path of a socket may have, and what multiprocessing adds to that of a folder.
_SOCKET_PATH_BYTES = 107
_SOCKET_NAME_BYTES = len("/pymp-xxxxxxxx/listener-xxxxxxxx")


class Request(NamedTuple):
    """A piece of a batch."""

    train: bool  # whether its samples are for training or held out
    epoch: int  # the epoch
    indices: list[int]  # the samples


class Piece(NamedTuple):
    """The result of a request."""

    content: Tensor  # the images, or their files one after the other where the GPU decodes them
    sizes: list[int]  # the bytes of each file; nothing where they are decoded
    failures: list[tuple[int, str]]  # index and reason of each that could not be decoded


class Pieces(Dataset[Piece | DataError]):
    """Makes pieces, in the workers."""

    def __init__(self, train: EncodedSplit, held_out: EncodedSplit, seed: int, raw: bool) -> None:
        """Sets what pieces are made of. `raw`: whether the GPU decodes."""
        self._train = train
        self._held_out = held_out
        self._seed = seed
        self._raw = raw

    def __getitem__(self, request: Request) -> Piece | DataError:
        """The piece, or its error: raised in a worker, it would lose its message."""
        try:
            return self._make(request)
        except DataError as error:
            return error
        except Exception as error:
            return DataError(
                f"reading {self.first_of(request)} or one of the {len(request.indices) - 1} images "
                f"after it failed with {type(error).__name__}: {error}"
            )

    def first_of(self, request: Request) -> str:
        """The path or URI of the first sample of a request, for messages."""
        return self._split(request).name(request.indices[0])

    def _make(self, request: Request) -> Piece:
        split = self._split(request)
        contents = split.contents(request.indices)
        if self._raw:
            return Piece(torch.cat(contents), list(map(len, contents)), [])
        views = view_of(request, self._seed)
        images, failures = decode.on_cpu(contents, views, split.size)
        return Piece(images, [], failures)

    def _split(self, request: Request) -> EncodedSplit:
        return self._train if request.train else self._held_out


def view_of(request: Request, seed: int) -> decode.ViewOf:
    """The view of each sample of a request."""

    def view(place: int, height: int, width: int) -> View:
        if not request.train:
            return centre_view(height, width)
        return random_view(height, width, seed, request.epoch, request.indices[place])

    return view


class Workers:
    """The worker processes of a rank, which are kept over epochs."""

    def __init__(self, pieces: Pieces, config: Config, pin: bool) -> None:
        """Starts nothing yet.

        `config`: the arguments: their number, and the batches that they prepare; `pin`: whether
        pieces are copied to pinned memory.
        """
        self._pieces = pieces
        self._requests: Iterable[Request] = ()
        self._asked: deque[Request] = deque()
        count = worker_count(config)
        waiting = config.prefetch * math.ceil(config.batch_size / PIECE)
        self._loader = DataLoader(
            pieces,
            batch_size=None,
            sampler=_Sampler(self),
            num_workers=count,
            pin_memory=pin,
            # The default one belongs to dropout, whose numbers a restart must not change.
            generator=torch.Generator(),
            multiprocessing_context=_context() if count else None,
            worker_init_fn=_begin,
            persistent_workers=count > 0,
            prefetch_factor=max(2, math.ceil(waiting / count)) if count else None,
            # With a timeout, torch checks for dead workers only at its end. The watchdog finds one
            # that hangs.
            timeout=0,
        )

    def make(self, requests: Iterable[Request]) -> Iterator[Piece]:
        """The pieces of these requests, in their order.

        Raises DataError: if a file cannot be read, or a worker is killed.
        """
        self._requests = requests
        self._asked.clear()
        try:
            for piece in self._loader:
                self._asked.popleft()
                if isinstance(piece, DataError):
                    raise piece
                yield piece
        except (RuntimeError, OSError, EOFError) as error:
            # torch's error, or that of a worker that was killed while it sent a piece.
            if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
                raise
            raise DataError(self._lost_worker(error)) from error

    def _lost_worker(self, error: Exception) -> str:
        """The message for a worker that was killed or could not be started."""
        hint = "give the pod more memory or a larger /dev/shm, or lower --workers or --prefetch"
        if not self._asked:
            words = "worker processes to read images with cannot be started"
            return f"{words} ({type(error).__name__}: {error}); {hint}"
        return (
            "a worker process that reads images was killed, for want of memory as a rule, before "
            f"{self._pieces.first_of(self._asked[0])} came, the next of "
            f"{sum(len(each.indices) for each in self._asked)} images under way ({error}); {hint}"
        )

    def requests(self) -> Iterator[Request]:
        """The requests of the current call of `make`, noted until they are answered."""
        for request in self._requests:
            self._asked.append(request)
            yield request

    def close(self) -> None:
        """Ends the processes."""
        # The loader ends its workers when its iterator is dropped.
        self._loader._iterator = None


class _Sampler:
    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def __iter__(self) -> Iterator[Request]:
        return self._workers.requests()


def worker_count(config: Config) -> int:
    """The workers of a rank: --workers, or one less than its share of the cores."""
    if config.workers >= 0:
        return config.workers
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(_MAX_WORKERS, max(0, usable_cores() // ranks - 1))


def _context() -> BaseContext:
    """Processes forked from a clean server: this process has threads, and maybe a GPU, in use."""
    _shorten_socket_paths()
    context = multiprocessing.get_context("forkserver")
    # Slow imports are done once.
    context.set_forkserver_preload([__name__, "torchvision.io", "torchvision.transforms.v2"])
    # torchrun signals whole process groups. Forked processes inherit the blocked signals: if the
    # server ended, its workers would end before the rank stops. Python starts a resource tracker
    # first, and unblocks signals when that runs.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def _shorten_socket_paths() -> None:
    """Has multiprocessing make its sockets in /tmp where TMPDIR is too long for their paths."""
    if len(os.fsencode(tempfile.gettempdir())) + _SOCKET_NAME_BYTES > _SOCKET_PATH_BYTES:
        before = tempfile.tempdir
        tempfile.tempdir = "/tmp"  # noqa: S108 (a folder of its own is made there)
        try:
            util.get_temp_dir()  # it is made once, and workers inherit its name
        finally:
            tempfile.tempdir = before


def _begin(_number: int) -> None:
    torch.set_num_threads(1)
    # The rank handles the signal, and needs its workers until then.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    rank = multiprocessing.parent_process()
    if rank is not None:
        threading.Thread(target=_follow, args=(rank,), daemon=True).start()


def _follow(rank: multiprocessing.process.BaseProcess) -> None:
    """Ends this worker as soon as the rank has ended, in any way."""
    rank.join()
    os._exit(0)
