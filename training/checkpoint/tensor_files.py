"""Writes and reads the tensors of a checkpoint with torch.distributed.checkpoint.

Every rank writes its part and reads the part that it needs: so a checkpoint of one plan and number
of ranks loads under another. Nothing that is read can run code, or take more memory
than its file is large: tensors are read with `weights_only=True` after a check of their archives,
other objects are refused, and the index is read by `index`.
"""

from __future__ import annotations

import io
import pickletools
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import PurePath
from typing import IO, Any

import torch.distributed as dist
from torch.distributed.checkpoint import filesystem, metadata, state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
)
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
# What the pickle of a tensor names. Of builtins it could name `bytearray`, of any length.
_TENSOR_MODULES = {"torch", "torch._utils", "collections"}
Tensors = dict[str, Any]
"""Tensors by name, in dictionaries that may hold dictionaries."""
Files = dict[str, dict[str, Any]]
"""Size in bytes and sha256 of each file, by name."""

# One process writes alone on purpose.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable")
# An incomplete checkpoint is overwritten on purpose.
warnings.filterwarnings("ignore", message="Detected an existing checkpoint")


def write(
    folder: Folder,
    path: str,
    tensors: Tensors,
    group: dist.ProcessGroup | None,
    commit: Callable[[Files], None],
    planner: Planner | None = None,
) -> None:
    """Writes this rank's part; all ranks of the group call it together.

    `path`: the subfolder of the files, emptied first. A tensor that many ranks hold in full is
    written by one of them. `group`: None for this process alone. `commit`: called on the first rank
    when all have written, with all files. `planner`: that of the last time, if tensors of the same
    names are written again. Raises StorageError: on all ranks, if one cannot write.
    """
    kind = _Writer if isinstance(folder, LocalFolder) else _RemoteWriter
    writer = kind(folder, path, commit)
    with _first_error():
        state_dict_saver.save(
            tensors,
            storage_writer=writer,
            planner=planner or Planner(),
            process_group=group,
            **_alone(group),
        )


def read(
    folder: Folder, path: str, index: Metadata, tensors: Tensors, group: dist.ProcessGroup | None
) -> None:
    """Fills tensors in place; all ranks of the group call it together.

    `tensors`: in full or parts, whatever parts were written. `group`: None for this process alone.
    Raises CheckpointError: on all ranks, if a tensor is missing or has another shape. Raises
    StorageError: on all ranks, if a file cannot be read.
    """
    kind = _Reader if isinstance(folder, LocalFolder) else _RemoteReader
    reader = kind(folder, path, index)
    with _first_error():
        state_dict_loader.load(
            tensors,
            storage_reader=reader,
            planner=DefaultLoadPlanner(),
            process_group=group,
            **_alone(group),
        )


def _alone(group: dist.ProcessGroup | None) -> dict[str, Any]:
    """What torch is told for one process alone; releases before 2.7 take no such option."""
    return {} if group is not None else {"no_dist": True}


class Planner(DefaultSavePlanner):
    """Plans which rank writes what, and keeps the plan while the tensors do not change.

    Planning takes some tenths of a second of Python, in which training could hardly continue.
    torch's own cache has one plan for the whole process, and makes each rank's part of it again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, Any] = {}
        self._planned: dict[str, Any] = {}
        self._parts: list[SavePlan] = []

    def create_local_plan(self) -> SavePlan:
        """What this rank would write, or a plan that says it is as the last time."""
        self._kinds = {
            name: (type(value), getattr(value, "shape", None), getattr(value, "dtype", None))
            for name, value in self.state_dict.items()
        }
        # By this the first rank knows that the part has not changed.
        return SavePlan([], usable=False) if self._is_planned else super().create_local_plan()

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """On the first rank: which rank writes what, or plans that say it is as the last time."""
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
        # torch raises RuntimeError, ValueError or AssertionError for what does not fit.
        raise CheckpointError(f"rank {rank}: {type(error).__name__}: {error}") from failed


class _Files:
    """The file system of a writer or reader of torch.distributed.checkpoint, for one folder."""

    def __init__(self, inner: Any, folder: Folder, path: str) -> None:
        self._inner = inner
        self._folder = folder
        self._path = path
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
                # torch.save closes its archive, and raises the error of that instead of the first.
                if measured.failed is not None:
                    raise measured.failed from measured.failed.__cause__
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
        """Does nothing yet: ranks would make the folder while the first one still deletes it."""

    def explained(self, action: str) -> AbstractContextManager[None]:
        return self._folder.explained(action, self._path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _RankFiles(WriteResult):
    """The files of one rank, sent to the first rank with the results of its tensors."""


class _Writer(filesystem.FileSystemWriter):
    """A writer that measures its files, and calls `commit` on the first rank at the end."""

    def __init__(
        self, folder: Folder, path: str, commit: Callable[[Files], None], **options: Any
    ) -> None:
        super().__init__(f"{folder.uri}/{path}", **options)
        self._folder = folder
        self._path = path
        self._commit = commit
        self.fs: Any = _Files(self.fs, folder, path)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        # All ranks are alive at this point: before, one that lost another could be saving this step
        # alone. And no rank writes before it has its plan.
        self._folder.remove(self._path)
        return super().prepare_global_plan(plans)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        self._folder.make(self._path)
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
        # The path where it was written is of no use elsewhere.
        return None


class _RemoteWriter(_Writer, FsspecWriter):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args, sync_files=False)


class _Reader(filesystem.FileSystemReader):
    def __init__(self, folder: Folder, path: str, index: Metadata) -> None:
        super().__init__(f"{folder.uri}/{path}")
        self._index = index
        self.fs: Any = _Files(self.fs, folder, path)

    def read_metadata(self, *_args: Any, **kwargs: Any) -> Metadata:  # noqa: ARG002
        return self._index

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                raise CheckpointError(
                    "the checkpoint holds an object in the place of the tensor "
                    f"{item.storage_index.fqn!r}; reading it could run code, so it is refused"
                )
        return super().read_data(plan, planner)

    def _slice_file(self, file: Any, sinfo: Any) -> io.BytesIO:
        # All of it is needed: an object store then gets one request, and not one for each record.
        part = io.BytesIO(super()._slice_file(file, sinfo).read())
        _check_archive(part, sinfo.relative_path, sinfo.length)
        part.seek(0)
        return part


def _check_archive(part: IO[bytes], name: str, length: int) -> None:
    """Refuses a tensor whose archive would take more memory than the bytes that it is read from."""
    try:
        with zipfile.ZipFile(part) as archive:
            records = archive.infolist()
            larger = sum(record.file_size for record in records) > length
            modules = {
                str(argument).partition(" ")[0]
                for record in ([] if larger else records)
                if record.filename.endswith("data.pkl")
                for operation, argument, _ in pickletools.genops(archive.read(record))
                if operation.name == "GLOBAL"
            }
    except (zipfile.BadZipFile, ValueError, NotImplementedError, zlib.error) as error:
        raise CheckpointError(f"{name} holds something else than tensors: {error}") from error
    if larger or modules - _TENSOR_MODULES:
        raise CheckpointError(
            f"a tensor in {name} claims more than the {length} bytes that it is made of; reading "
            "it could take all memory, so it is refused"
        )


class _RemoteReader(_Reader, FsspecReader):
    pass
