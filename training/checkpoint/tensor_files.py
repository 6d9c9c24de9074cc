"""The tensors of a checkpoint as files, by torch.distributed.checkpoint.

Every rank writes what it holds, and reads what it needs: so a checkpoint of one plan and number of
ranks loads under another. Nothing that is read can run code: tensors are read with
`weights_only=True`, other objects are refused, and the index, a pickle of
torch.distributed.checkpoint's own, may name nothing but the classes that an index is made of.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import PurePath
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import filesystem, metadata, state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from kfp_pytorch.training.checkpoint.checksum_writer import CHUNK_BYTES, Chunks, MeasuredFile
from kfp_pytorch.training.errors import CheckpointError, TrainingError
from kfp_pytorch.training.storage.job_folder import Folder, LocalFolder

try:
    from torch.distributed.checkpoint.fsspec_filesystem import FsspecReader, FsspecWriter
except ImportError:  # the name before torch 2.14
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter

INDEX = ".metadata"
Tensors = dict[str, Any]
"""Tensors by name, in dictionaries that may hold dictionaries."""
Files = dict[str, dict[str, Any]]
"""Size in bytes and sha256 of each file, by name."""

# That one process writes alone is said on purpose.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable")
# So is what becomes of an attempt that was cut short.
warnings.filterwarnings("ignore", message="Detected an existing checkpoint")


def write(
    folder: Folder,
    place: str,
    tensors: Tensors,
    group: dist.ProcessGroup | None,
    commit: Callable[[Files], None],
    planner: Planner | None = None,
) -> None:
    """Writes what this rank holds; all ranks of the group call it together.

    Args:
        folder: The job's folder.
        place: The part of it that the files go to. What lies there is deleted first.
        tensors: What to write. Of a tensor that many ranks hold whole, one of them writes it.
        group: The ranks, or None for this process alone, whatever other ranks there are.
        commit: Called on the first rank alone when all ranks have written, with all files.
        planner: What planned the last time, if tensors of the same names are written again.

    Raises:
        StorageError: On all ranks, if one cannot write.
    """
    kind = _Writer if isinstance(folder, LocalFolder) else _RemoteWriter
    writer = kind(folder, place, commit)
    with _first_error():
        state_dict_saver.save(
            tensors,
            storage_writer=writer,
            planner=planner or Planner(),
            process_group=group,
            no_dist=group is None,
        )


def read_index(folder: Folder, place: str, files: Files) -> Metadata:
    """Reads which tensors lie where.

    Args:
        folder: A job's folder.
        place: The part of it that the files are in.
        files: The files that belong to it; the index may point to no other.

    Returns:
        The index; the full names of the tensors are the keys of its `state_dict_metadata`.

    Raises:
        CheckpointError: If the file is no such index.
        StorageError: If it cannot be read.
    """
    where = f"{folder.uri}/{place}/{INDEX}"
    try:
        index = _IndexUnpickler(io.BytesIO(folder.read(f"{place}/{INDEX}"))).load()
    except TrainingError:
        raise
    except Exception as error:
        # Whatever its bytes make an unpickler stumble over.
        raise CheckpointError(f"{where} is no index of tensors: {error}") from error
    if not isinstance(index, Metadata) or not isinstance(index.storage_data, dict):
        raise CheckpointError(f"{where} is no index of tensors")
    for entry in index.storage_data.values():
        if entry.relative_path not in files:
            raise CheckpointError(
                f"{where} points to {entry.relative_path!r}, which is no file of this checkpoint"
            )
    return index


def read(
    folder: Folder, place: str, index: Metadata, tensors: Tensors, group: dist.ProcessGroup | None
) -> None:
    """Fills tensors in place; all ranks of the group call it together.

    Args:
        folder: A job's folder.
        place: The part of it that the files are in.
        index: What `read_index` gave.
        tensors: What to fill: whole tensors or parts of them, whatever parts were written.
        group: The ranks, or None for this process alone.

    Raises:
        CheckpointError: On all ranks, if a tensor is not there, or of another shape.
        StorageError: On all ranks, if a file cannot be read.
    """
    kind = _Reader if isinstance(folder, LocalFolder) else _RemoteReader
    reader = kind(folder, place, index)
    with _first_error():
        state_dict_loader.load(
            tensors,
            storage_reader=reader,
            planner=_TensorsOnly(),
            process_group=group,
            no_dist=group is None,
        )


class Planner(DefaultSavePlanner):
    """Plans which rank writes what, and keeps to the plan as long as the tensors are alike.

    To plan takes some tenths of a second of Python alone, in which training could hardly go on.
    torch's own caching keeps one plan for the whole process, whatever job it is of, and makes
    each rank's part of it anew.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, Any] = {}
        self._planned: dict[str, Any] = {}
        self._parts: list[SavePlan] = []

    def create_local_plan(self) -> SavePlan:
        """What this rank would write, or a word that it is as the last time."""
        self._kinds = {
            name: (type(value), getattr(value, "shape", None), getattr(value, "dtype", None))
            for name, value in self.state_dict.items()
        }
        # This is how a rank tells the first one that its part is as it was.
        return SavePlan([], usable=False) if self._is_planned else super().create_local_plan()

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """On the first rank, who writes what, or a word that it is as the last time."""
        if not any(plan.usable for plan in all_plans):
            return all_plans, self.metadata
        known = self._parts or all_plans
        self._parts = [
            new if new.usable else old for new, old in zip(all_plans, known, strict=True)
        ]
        return super().create_global_plan(self._parts)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """What this rank writes."""
        # Only now is it known that no rank failed to plan.
        self._planned = self._kinds
        return super().finish_plan(new_plan if new_plan.usable else self.plan)

    @property
    def _is_planned(self) -> bool:
        return bool(self._planned) and self._planned == self._kinds


@contextmanager
def _first_error() -> Iterator[None]:
    """Raises the first of the errors that torch.distributed.checkpoint gathers from the ranks."""
    try:
        yield
    except CheckpointException as failed:
        rank, (error, _trace) = min(failed.failures.items(), key=lambda item: item[0])
        if isinstance(error, TrainingError):
            raise error from failed
        # What does not fit is told with RuntimeError, ValueError and AssertionError alike.
        raise CheckpointError(f"rank {rank}: {type(error).__name__}: {error}") from failed


class _Files:
    """The file system of a writer or reader of torch.distributed.checkpoint, at one folder.

    Attributes:
        written: What was written here.
    """

    def __init__(self, inner: Any, folder: Folder, place: str) -> None:
        self._inner = inner
        self._folder = folder
        self._place = place
        self.written: Files = {}

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        action = "read" if mode == "rb" else "write"
        with self.explained(action), self._inner.create_stream(path, mode) as file:
            if action == "read":
                yield file
                return
            measured = MeasuredFile(file)
            try:
                with Chunks(measured, CHUNK_BYTES) as chunks:
                    yield chunks
            except Exception:
                # torch.save closes its archive, and raises of that in the place of the first error.
                if measured.refused is not None:
                    raise measured.refused from measured.refused.__cause__
                raise
        self.written[PurePath(path).name] = measured.facts()

    def rename(self, path: Any, new_path: Any) -> None:
        with self.explained("write"):
            self._inner.rename(path, new_path)
        self.written[PurePath(new_path).name] = self.written.pop(PurePath(path).name)

    def exists(self, path: Any) -> bool:
        with self.explained("write"):
            return bool(self._inner.exists(path))

    def rm_file(self, path: Any) -> None:
        with self.explained("write"):
            self._inner.rm_file(path)

    def mkdir(self, _path: Any) -> None:
        """Does nothing yet: ranks would make the folder while the first one still clears it."""

    def explained(self, action: str) -> AbstractContextManager[None]:
        return self._folder.explained(action, self._place)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _RankFiles(WriteResult):
    """What one rank wrote, on its way to the first rank with the results of its tensors."""


class _Writer(filesystem.FileSystemWriter):
    """A writer that measures its files, and tells on the first rank when all are written."""

    def __init__(
        self, folder: Folder, place: str, commit: Callable[[Files], None], **options: Any
    ) -> None:
        super().__init__(f"{folder.uri}/{place}", **options)
        self._folder = folder
        self._place = place
        self._commit = commit
        self.fs: Any = _Files(self.fs, folder, place)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        # Not before all ranks were heard: one that misses another may be saving this step alone.
        # And no rank writes before this one has told it what.
        self._folder.remove(self._place)
        return super().prepare_global_plan(plans)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        self._folder.make(self._place)
        results = super().write_data(plan, planner).wait()
        ours = _RankFiles(metadata.MetadataIndex(""), 0, self.fs.written)
        future: Future[list[WriteResult]] = Future()
        future.set_result([*results, ours])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        files: Files = {}
        tensors: list[list[WriteResult]] = []
        for rank in results:
            for result in rank:
                if isinstance(result, _RankFiles):
                    files.update(result.storage_data)
            tensors.append([each for each in rank if not isinstance(each, _RankFiles)])
        super().finish(metadata, tensors)
        self._commit({**files, INDEX: self.fs.written[INDEX]})

    def storage_meta(self) -> None:
        # Where it was written is of no use to whoever reads it elsewhere.
        return None


class _RemoteWriter(_Writer, FsspecWriter):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args, sync_files=False)


class _Reader(filesystem.FileSystemReader):
    """A reader that has its index already."""

    def __init__(self, folder: Folder, place: str, index: Metadata) -> None:
        super().__init__(f"{folder.uri}/{place}")
        self._index = index
        self.fs: Any = _Files(self.fs, folder, place)

    def read_metadata(self, *_args: Any, **kwargs: Any) -> Metadata:  # noqa: ARG002
        return self._index


class _RemoteReader(_Reader, FsspecReader):
    pass


class _TensorsOnly(DefaultLoadPlanner):
    """Refuses what is no tensor: torch.distributed.checkpoint would unpickle it."""

    def load_bytes(self, read_item: ReadItem, _value: io.BytesIO) -> None:
        raise CheckpointError(
            f"the checkpoint holds an object in the place of the tensor "
            f"{read_item.storage_index.fqn!r}; reading it could run code, so it is refused"
        )


class _IndexUnpickler(pickle.Unpickler):
    """Makes nothing but the dataclasses of an index."""

    _CLASSES: ClassVar = {
        (kind.__module__, kind.__name__): kind
        for kind in (
            metadata.BytesStorageMetadata,
            metadata.ChunkStorageMetadata,
            metadata.Metadata,
            metadata.MetadataIndex,
            metadata.TensorProperties,
            metadata.TensorStorageMetadata,
            metadata._MEM_FORMAT_ENCODING,
            filesystem._StorageInfo,
            torch.Size,
        )
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._CLASSES:
            return self._CLASSES[module, name]
        if (module, name) == ("torch.serialization", "_get_layout"):
            return {"torch.strided": torch.strided}.__getitem__
        dtype = getattr(torch, name, None) if module == "torch" else None
        if isinstance(dtype, torch.dtype):
            return dtype
        raise CheckpointError(
            f"the index of the checkpoint names {module}.{name}, which no index needs; reading it "
            "could run code, so it is refused"
        )
