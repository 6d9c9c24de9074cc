"""A job's checkpoints: the state is copied, and a thread writes it while training continues."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.checkpoint import catalog, job_state, staging, tensor_files
from kfp_pytorch.training.checkpoint.catalog import Checkpoint
from kfp_pytorch.training.checkpoint.job_state import State
from kfp_pytorch.training.checkpoint.tensor_files import Files, Tensors
from kfp_pytorch.training.entry import rank_records
from kfp_pytorch.training.errors import DivergedError, StorageError
from kfp_pytorch.training.learning_rate import peak_rate
from kfp_pytorch.training.parallel.process_group import World, gather, on_main, share_buffers
from kfp_pytorch.training.storage.job_folder import Folder, open_folder

LOG = logging.getLogger("kfp_pytorch.training")
# With another value of these a checkpoint's weights or position would mean something else.
_IDENTITY = (
    *("dataset", "model", "image_size", "max_train_samples"),
    *("seed", "shuffle_block", "optimizer"),
)
# A lost rank is noticed at once; a rank whose storage is slow may take its time.
_WRITE_TIMEOUT = timedelta(hours=6)
# How long a rank that is about to end waits for the checkpoint that is being written.
_LAST_WRITE_SECONDS = 10.0
# A network file system may show what another node wrote only so many seconds later.
_VISIBLE_AFTER = 90.0


class Checkpoints:
    """Writes a job's checkpoints, one at a time, and finds the one to resume from."""

    def __init__(
        self,
        folder: Folder,
        config: Config,
        world: World,
        state: State,
        data: Mapping[str, int | str],
        data_ranks: int = 0,
    ) -> None:
        """Prepares to write; all ranks do so together.

        `data`: properties of the data that must be equal in a checkpoint, by name. `data_ranks`:
        the parts of a global batch; by default one for each rank.
        """
        self._folder = folder
        self._config = config
        self._world = world
        self._state = state
        self._identity = {**{key: getattr(config, key) for key in _IDENTITY}, **data}
        self._data_ranks = data_ranks or world.size
        # Its own group: the thread's exchanges must not mix with those of training.
        self._group: dist.ProcessGroup | None = None
        if world.size > 1:
            self._group = dist.new_group(backend="gloo", timeout=_WRITE_TIMEOUT)  # type: ignore[assignment]
        self._staging = staging.Staging(world.device, state.model, state.optimizer)
        self._planner = tensor_files.Planner()
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None
        self._newest_step: int | None = None
        self._prepared = False
        # Seconds for which training waited for the last `save`, and its thread took to write it.
        self.stalled = self.wrote = 0.0

    def resume(self) -> bool:
        """Resumes from the job's newest checkpoint, or that of the job to start from, on all ranks.

        Returns whether there was one. Raises CheckpointError: on all ranks, if it cannot be used.
        """
        # Ranks that torchrun starts again resume, whatever the arguments say.
        restarted = any(gather(self._world, rank_records.was_started_before()))
        delete = self._config.resume == "never" and not restarted
        found = on_main(self._world, functools.partial(self._find, delete))
        rank_records.record_start()
        if found is not None:
            uri, meta = found
            checkpoint = Checkpoint(open_folder(uri), meta)
            job_state.restore(self._state, checkpoint, self._world, self._config.seed, self._group)
            if uri == self._folder.uri:
                self._newest_step = checkpoint.step
            self._log_changes(checkpoint)
        # Makes room on a full disk: --keep may be lower now, and incomplete ones are deleted.
        self._prune()
        return found is not None

    def newest(self) -> Checkpoint | None:
        """The job's newest checkpoint, for one rank to read all of it."""
        return catalog.newest(self._folder, {})

    def due(self, step: int) -> bool:
        """Whether a checkpoint is to be written after this step, whatever the epoch."""
        every = self._config.checkpoint_every_steps
        return bool(every) and step % every == 0

    def prepare(self) -> None:
        """Lets a thread allocate the memory that the state is copied to, before the first `save`.

        All ranks call this after each step; after the first time it does nothing.
        """
        # An optimizer that has no state yet would need more memory later.
        if self._prepared or not self._state.optimizer.state:
            return
        self._prepared = True
        tensors = job_state.tensors(self._state, self._world)
        self._pending = self._thread.submit(self._staging.prepare, tensors)

    def save(
        self,
        before: Callable[[], None] = lambda: None,
        when_complete: Callable[[], None] = lambda: None,
    ) -> None:
        """Copies the state, and lets a thread write it; all ranks call this together.

        It waits for a checkpoint that is still being written. The same step is not saved twice.
        `before`: called in the thread of rank 0 right before the checkpoint is complete. Raises
        StorageError: if the checkpoint before could not be written.
        """
        step = self._state.progress.step
        if step == self._newest_step:
            # It may have been evaluated since it was written.
            self.wait()
            self._prune()
            return
        clock = time.perf_counter()
        self._prepared = True
        self.wait()
        share_buffers(self._world, self._state.model)
        position = job_state.position(self._state)
        carried = job_state.plain(self._state, position, self._state.meter.state())
        copied = self._staging.copy(job_state.tensors(self._state, self._world))
        about = {**self._about(), "carried": carried}
        losses = dict(self._state.history.curves.get("loss", []))
        self.stalled = time.perf_counter() - clock
        self._pending = self._thread.submit(self._write, step, copied, about, losses, before)
        self._newest_step = step
        self._pending.add_done_callback(
            lambda done: when_complete() if not done.exception() else None
        )

    def _prune(self) -> None:
        losses = dict(self._state.history.curves.get("loss", []))
        on_main(self._world, lambda: catalog.prune(self._folder, self._config.keep, losses))

    def save_alone(self, position: dict[str, Any]) -> None:
        """Writes a checkpoint by this rank alone, which has all of the model.

        Other ranks are lost or about to end, so nothing is exchanged with them, and the device may
        be blocked in an exchange. `position`: that of the job at the last step that the weights
        have taken. Raises DivergedError: if the weights are not finite. Raises StorageError.
        """
        step = position["progress"]["step"]
        if self._pending is not None and self._has_failed(self._pending, step):
            self._newest_step = None
        if step <= (self._newest_step or 0) or catalog.is_complete(self._folder, step):
            return
        with _own_stream(self._world.device):
            tensors = job_state.tensors(self._state, self._world)
            copied = {part: _on_cpu(values) for part, values in tensors.items()}
            weights = staging.local_parts(copied["model"])
            if not all(weight.sum().isfinite() for _, weight in weights):
                raise DivergedError(f"the weights of step {step} are no finite numbers")
            carried = job_state.plain(self._state, position, self._state.meter.local())
        about = {**self._about(), "carried": carried}

        def commit(files: Files) -> None:
            catalog.complete(self._folder, step, about, files)

        tensor_files.write(self._folder, catalog.path_of(step), copied, None, commit)
        LOG.info("saved step %s from the memory of rank %s", step, self._world.rank)

    def _has_failed(self, pending: Future[None], step: int) -> bool:
        """Whether the checkpoint that is being written cannot replace one of `step`.

        Raises TimeoutError: if it is of that very step, and still being written.
        """
        try:
            # It fails at once if it misses the same rank.
            return pending.exception(timeout=_LAST_WRITE_SECONDS) is not None
        except TimeoutError:
            # The copy of a step that the device never ends does not arrive.
            if step == self._newest_step:
                raise
            return True

    def check(self) -> None:
        """Raises StorageError if the last checkpoint could not be written; does not wait for it."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Waits until the last checkpoint is complete, or StorageError."""
        if self._pending is not None:
            self._pending.result()
            # Not before, and not if it failed: `save_alone` in its thread has to know of it.
            self._pending = None

    def close(self) -> None:
        """Ends the thread when its last write is done."""
        self._thread.shutdown(wait=False)

    def _write(
        self,
        step: int,
        tensors: Tensors,
        about: dict[str, Any],
        losses: dict[int, float],
        before: Callable[[], None],
    ) -> None:
        clock = time.perf_counter()
        folder, path = self._folder, catalog.path_of(step)
        self._staging.finish()

        def commit(files: Files) -> None:
            _await_files(folder, path, files)
            before()
            catalog.complete(folder, step, about, files)
            catalog.prune(folder, self._config.keep, losses)

        tensor_files.write(folder, path, tensors, self._group, commit, self._planner)
        self.wrote = time.perf_counter() - clock
        if self._world.is_main:
            words = "wrote the checkpoint %s in %.2f s; training waited %.3f s to hand it over"
            LOG.info(words, f"{folder.uri}/{path}", self.wrote, self.stalled)

    def _find(self, delete: bool) -> tuple[str, dict[str, Any]] | None:
        config, folder = self._config, self._folder
        if delete:
            catalog.clear(folder)
        found = catalog.newest(folder, self._identity)
        if found is not None:
            catalog.discard_after(folder, found.step)
        elif config.resume_from:
            found = catalog.newest_of_other(open_folder(config.resume_from), self._identity)
        return (found.folder.uri, found.meta) if found else None

    def _about(self) -> dict[str, Any]:
        config, world = self._config, self._world
        return {
            **self._identity,
            "arguments": asdict(config),
            "world_size": world.size,
            "global_batch": config.batch_size * self._data_ranks,
            "learning_rate": peak_rate(config, self._data_ranks),
            "epoch": self._state.progress.epoch,
            "versions": {"torch": torch.__version__},
        }

    def _log_changes(self, found: Checkpoint) -> None:
        LOG.info("going on from %s, at step %s", found.uri, found.step)
        about = self._about()
        for name in ("global_batch", "learning_rate"):
            was, now = found.meta.get(name), about[name]
            if was != now:
                LOG.warning("%s was %s in the checkpoint, and is %s", name, was, now)


def _own_stream(device: torch.device) -> AbstractContextManager[object]:
    """A context in which a GPU does not wait for what it is computing, which may never end."""
    return torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()  # type: ignore[no-untyped-call]


def _on_cpu(tensors: Tensors) -> Tensors:
    """Tensors in memory of the CPU, copies or not."""
    return {
        name: _on_cpu(value) if isinstance(value, dict) else value.detach().to("cpu")
        for name, value in tensors.items()
    }


def _await_files(folder: Folder, path: str, files: Files) -> None:
    """Waits until the files of all ranks are visible in one folder, in full size."""
    expected = {name: facts["bytes"] for name, facts in files.items()}
    deadline = time.monotonic() + _VISIBLE_AFTER
    while missing := dict(expected.items() - folder.sizes(path).items()):
        if time.monotonic() > deadline:
            raise StorageError(
                f"{folder.uri}/{path} lacks what other ranks wrote ({', '.join(sorted(missing))});"
                " give a folder with --output that all nodes share"
            )
        time.sleep(1)
