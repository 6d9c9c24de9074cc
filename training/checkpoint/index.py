"""The index of a checkpoint: which tensor is where, a pickle of torch.distributed.checkpoint.

Reading it runs no code and takes no more memory than it is large: it may name nothing but the
classes that an index is made of, and points to nothing but the bytes of the checkpoint's files.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, ClassVar, NoReturn

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.metadata import Metadata

from kfp_pytorch.training.checkpoint.tensor_files import INDEX, Files
from kfp_pytorch.training.errors import CheckpointError, TrainingError
from kfp_pytorch.training.storage.job_folder import Folder


def read_index(folder: Folder, place: str, files: Files) -> Metadata:
    """Reads which tensors are where; their names are the keys of its `state_dict_metadata`.

    `files`: the files that belong to it; the index may point to no other. Raises CheckpointError:
    if the file is no such index. Raises StorageError: if it cannot be read.
    """
    where = f"{folder.uri}/{place}/{INDEX}"
    try:
        index = _IndexUnpickler(io.BytesIO(folder.read(f"{place}/{INDEX}"))).load()
    except TrainingError:
        raise
    except Exception as error:
        # An unpickler may raise any exception on damaged bytes.
        why = str(error) or type(error).__name__
        raise CheckpointError(f"{where} is no index of tensors: {why}") from error
    if not isinstance(index, Metadata) or not isinstance(index.storage_data, dict):
        raise CheckpointError(f"{where} is no index of tensors")
    for entry in index.storage_data.values():
        _check_entry(entry, files, where)
    return index


def _check_entry(entry: Any, files: Files, where: str) -> None:
    """Refuses an entry that points out of the checkpoint's files."""
    if entry.relative_path not in files:
        raise CheckpointError(
            f"{where} points to {entry.relative_path!r}, which is no file of this checkpoint"
        )
    size, offset, length = files[entry.relative_path]["bytes"], entry.offset, entry.length
    if not (type(offset) is type(length) is int and 0 <= offset <= offset + length <= size):
        raise CheckpointError(
            f"{where} points to {length} bytes from byte {offset} of {entry.relative_path!r}, "
            f"which has {size}"
        )
    if getattr(entry, "transform_descriptors", None):
        raise CheckpointError(
            f"{where} has {entry.relative_path!r} compressed, which this program does not write"
        )


def _enum_member(kind: Any, name: str) -> Any:
    """What `getattr` is to a member of an Enum, which Python before 3.11.4 pickles by it."""
    if kind is not metadata._MEM_FORMAT_ENCODING:
        raise CheckpointError(
            f"the index of the checkpoint asks for the attribute {name} of {kind}, which no index "
            "needs; reading it could run code, so it is refused"
        )
    return kind[name]


def _refuse_bytearray(_: pickle._Unpickler) -> NoReturn:
    raise pickle.UnpicklingError("it holds an array of bytes, which no index needs")


class _IndexUnpickler(pickle._Unpickler):
    """Makes nothing but the dataclasses of an index.

    The unpickler that is written in Python takes no more memory than there is to read; the one in C
    makes a table as long as the largest number of an object that the pickle names.
    """

    # An array takes the memory that it claims to need before its bytes are read.
    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        pickle.BYTEARRAY8[0]: _refuse_bytearray,
    }
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
        if (module, name) == ("builtins", "getattr"):
            return _enum_member
        dtype = getattr(torch, name, None) if module == "torch" else None
        if isinstance(dtype, torch.dtype):
            return dtype
        raise CheckpointError(
            f"the index of the checkpoint names {module}.{name}, which no index needs; reading it "
            "could run code, so it is refused"
        )
