"""Checkpoints of a script: complete or absent, in the layout of `training.checkpoint.catalog`.

`state.pt` is the state as torch.save writes it. Where tensors are sharded, every rank writes its
part of them with torch.distributed.checkpoint, and `state.pt` has all else.
"""

from __future__ import annotations

import io
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kfp_pytorch import __version__
from kfp_pytorch.launcher.constants import RESUME_FROM_ENV
from kfp_pytorch.training.checkpoint import catalog
from kfp_pytorch.training.checkpoint.checksum_writer import CHUNK_BYTES, Chunks, MeasuredFile
from kfp_pytorch.training.errors import CheckpointError
from kfp_pytorch.training.script import place, result
from kfp_pytorch.training.script.reports import reports
from kfp_pytorch.training.storage.job_folder import Folder, open_folder

STATE = "state.pt"
_INDEX = ".metadata"
_REFUSED = re.compile(r"GLOBAL (\S+)")
_CONTAINERS = (dict, OrderedDict, list, tuple)


@dataclass(frozen=True)
class Checkpoint:
    """A complete, undamaged checkpoint."""

    step: int  # how many steps were done
    path: str  # the path or URI of its files
    _folder: Folder
    _files: dict[str, dict[str, Any]]

    def load(self, into: Any = None, map_location: Any = "cpu") -> Any:
        """Returns the state that was saved; nothing in it can run code.

        Args:
            into: What is to have the state: dictionaries, lists and tuples as they were saved. What
                has `load_state_dict` is called with its part. Sharded tensors are filled in place,
                by all ranks together, whatever their number was; without them in `into` each
                process that calls this gets them whole, on the CPU.
            map_location: Where all other tensors go to; see torch.load.

        Raises:
            CheckpointError: It has other parts, or another program wrote it.
            StorageError: It cannot be read.
        """
        import torch

        if STATE not in self._files:
            raise CheckpointError(
                f"{self.path} was not written by script.save_checkpoint: it has no {STATE}"
            )
        with self._folder.reader(f"{catalog.path_of(self.step)}/{STATE}") as file:
            state = torch.load(file, map_location=map_location, weights_only=True)
        if _INDEX in self._files:
            state = self._with_sharded(state, _stated(into))
        _hand_over(state, into, self.path)
        return state

    def files(self) -> str:
        """The files that `save_checkpoint_files` kept, as the path of a folder to read.

        It is in the job's folder, where that is a path; else this process downloads them.

        Raises:
            CheckpointError: It has none: `save_checkpoint` wrote it.
            StorageError: They cannot be read.
        """
        from kfp_pytorch.training.script import file_checkpoints

        return file_checkpoints.local(self._folder, self.step, [*self._files])

    def _with_sharded(self, state: Any, into: Any) -> Any:
        import torch

        from kfp_pytorch.training.checkpoint import tensor_files
        from kfp_pytorch.training.checkpoint.index import read_index

        path = catalog.path_of(self.step)
        index = read_index(self._folder, path, self._files)
        described: dict[str, Any] = index.state_dict_metadata
        if into is None:
            tensors = {
                name: torch.empty(about.size, dtype=about.properties.dtype)
                for name, about in described.items()
                if hasattr(about, "size")
            }
        else:
            tensors = {
                name: value for name, value in _leaves(into) if isinstance(value, torch.Tensor)
            }
            if missing := sorted(set(described) - set(tensors)):
                raise CheckpointError(
                    f"{self.path} has {missing[0]} and {len(missing) - 1} more tensors that the "
                    "state to load into has not: give it as it was saved, the optimizer's state "
                    "included (torch.distributed.checkpoint.state_dict.get_state_dict)"
                )
            tensors = {name: tensors[name] for name in described}
        group = _group() if into is not None else None
        tensor_files.read(self._folder, path, index, tensors, group)
        return _mapped(state, lambda name, value: tensors.get(name, value))


def latest_checkpoint() -> Checkpoint | None:
    """The newest checkpoint to resume from, and None at a job's first start.

    It is that of this job, or else that of the job that `resume_from` names. The curves of what is
    reported continue after its step.

    Raises:
        CheckpointError: There are some, and none can be used.
        StorageError: The job's folder cannot be read.
    """
    folder = place.job_folder()
    found = catalog.newest(folder, {})
    other = os.environ.get(RESUME_FROM_ENV, "").strip()
    if found is None and other:
        found = catalog.newest_of_other(open_folder(other), {})
    if place.rank() == 0:
        # A job whose training is done before it begins has a result, too.
        result.leave_at_exit()
        if found is not None and found.folder is folder:
            catalog.discard_after(folder, found.step)
        reports().resume(found.folder if found else folder, found.step if found else 0)
    if found is None:
        return None
    place.say(f"resuming from {found.uri}, at step {found.step}")
    return Checkpoint(found.step, found.uri, found.folder, found.meta["files"])


def save_checkpoint(state: Any, step: int, *, keep: int = 2) -> None:
    """Writes a checkpoint, which is complete or absent, whatever happens meanwhile.

    Rank 0 writes, and the others return at once. Where the state has sharded tensors, as of FSDP,
    all ranks call this together and each writes its part.

    Args:
        state: Dictionaries, lists and tuples of tensors, numbers, texts, and of what has a
            `state_dict`, such as `{"model": model, "optimizer": optimizer, "best": 0.9}`.
        step: How many steps are done. Checkpoints of later steps are deleted.
        keep: How many of the newest are kept.

    Raises:
        TypeError: The state has an object that could not be loaded again, or the step is no whole
            number.
        ValueError: The step is below 0, or nothing would be kept.
        StorageError: The job's folder cannot be written to.
    """
    step, state = check(step, keep), _stated(state)
    sharded = any(place.is_sharded(value) for _, value in _leaves(state))
    folder, path = place.job_folder(), catalog.path_of(step)
    if sharded or place.rank() == 0:
        _check_loadable(state)
    if place.rank() == 0:
        begin(step)
    if not sharded:
        if place.rank() == 0:
            complete(step, keep, _write(folder, f"{path}/{STATE}", state))
        return
    import torch

    from kfp_pytorch.training.checkpoint import tensor_files

    tensors = {name: value for name, value in _leaves(state) if isinstance(value, torch.Tensor)}

    def commit(files: dict[str, dict[str, Any]]) -> None:
        rest = _mapped(state, lambda name, value: None if name in tensors else value)
        complete(step, keep, {**files, **_write(folder, f"{path}/{STATE}", rest)})

    tensor_files.write(folder, path, tensors, _group(), commit)


def check(step: Any, keep: int) -> int:
    """The step. Raises TypeError, ValueError: it cannot be one, or nothing would be kept."""
    if keep < 1:
        raise ValueError(f"keep is {keep} and must be at least 1")
    return place.whole_step(step)


def begin(step: int) -> None:
    """Makes room for a checkpoint: a partly written one in its place would not be complete."""
    result.leave_at_exit(has_own=True)
    catalog.discard(place.job_folder(), step)


def complete(step: int, keep: int, files: dict[str, dict[str, Any]]) -> None:
    """Completes a checkpoint whose files are written, and deletes what it makes out of date.

    Those of later steps, too: they are of a training that was given up for this one.
    """
    # A start that resumes here continues the curves up to here.
    reports().write()
    about = {"world_size": place.world_size(), "versions": {"kfp-pytorch": __version__}}
    catalog.complete(place.job_folder(), step, about, files)
    catalog.discard_after(place.job_folder(), step)
    catalog.prune(place.job_folder(), keep)
    result.leave_so_far()


def _write(folder: Folder, name: str, state: Any) -> dict[str, dict[str, Any]]:
    """Writes a file with torch.save; returns its size and sha256 by its name."""
    import torch

    with folder.writer(name) as file:
        measured = MeasuredFile(file)
        with Chunks(measured, CHUNK_BYTES) as chunks:
            torch.save(state, chunks)
    return {STATE: measured.facts()}


def _check_loadable(state: Any) -> None:
    """Refuses now what `weights_only=True` would refuse when the job resumes. Raises TypeError."""
    import torch

    file = io.BytesIO()
    try:
        torch.save(_mapped(state, lambda _, v: None if isinstance(v, torch.Tensor) else v), file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception as error:
        found = _REFUSED.search(str(error))
        raise TypeError(
            f"the state has {found[1] if found else 'an object'}, which cannot be saved and loaded "
            "with weights_only=True: save numbers, texts, tensors, and dictionaries, lists and "
            "tuples of them (float(x) of a number of NumPy, torch.from_numpy(x) of an array, "
            "vars(x) of arguments)"
        ) from error


def _group() -> Any:
    """The group of all ranks; None for a process alone."""
    import torch.distributed as dist

    return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None


def _stated(state: Any) -> Any:
    """The state with its `state_dict` in the place of what has one."""

    def change(_name: str, value: Any) -> Any:
        return _stated(value.state_dict()) if hasattr(value, "state_dict") else value

    return _mapped(state, change)


def _hand_over(state: Any, into: Any, path: str) -> None:
    """Calls `load_state_dict` of what has it."""
    if hasattr(into, "load_state_dict"):
        into.load_state_dict(state)
    elif type(into) in _CONTAINERS:
        for key, value in into.items() if isinstance(into, dict) else enumerate(into):
            try:
                part = state[key]
            except (KeyError, IndexError, TypeError):
                raise CheckpointError(f"{path} has no {key!r} to load") from None
            _hand_over(part, value, path)


def _leaves(state: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """All that containers of the state hold, each with its place."""
    if type(state) not in _CONTAINERS:
        yield name, state
        return
    for key, value in state.items() if isinstance(state, dict) else enumerate(state):
        yield from _leaves(value, f"{name}/{key}" if name else str(key))


def _mapped(state: Any, change: Callable[[str, Any], Any], name: str = "") -> Any:
    """The state with something else in the place of what containers hold."""
    if type(state) not in _CONTAINERS:
        return change(name, state)
    items = state.items() if isinstance(state, dict) else enumerate(state)
    changed = {
        key: _mapped(value, change, f"{name}/{key}" if name else str(key)) for key, value in items
    }
    return type(state)(changed) if isinstance(state, dict) else type(state)(changed.values())
