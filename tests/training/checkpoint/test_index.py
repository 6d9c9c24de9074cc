"""What a checkpoint's files claim is checked before memory is taken for it."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile

import pytest
import torch
from torch.distributed.checkpoint import metadata

from kfp_pytorch.training.checkpoint import tensor_files
from kfp_pytorch.training.checkpoint.index import read_index
from kfp_pytorch.training.errors import CheckpointError, StorageError
from kfp_pytorch.training.storage import job_folder
from kfp_pytorch.training.storage.job_folder import open_folder

PLACE = "checkpoints/step-00000001"
WEIGHT = torch.arange(64)


@pytest.fixture
def folder(tmp_path):
    return open_folder(str(tmp_path))


@pytest.fixture
def files(folder):
    """The files of a checkpoint with one tensor."""
    written = {}
    tensor_files.write(folder, PLACE, {"weight": WEIGHT}, None, written.update)
    return written


def read(folder, index):
    found = torch.zeros_like(WEIGHT)
    tensor_files.read(folder, PLACE, index, {"weight": found}, None)
    return found


def write_index(folder, content):
    job_folder.write(folder, f"{PLACE}/{tensor_files.INDEX}", content)


class PickledByPython3112(pickle._Pickler):
    """Pickles a member of an Enum as Python 3.11.0 to 3.11.3 do: by its name."""

    def reducer_override(self, value):
        if isinstance(value, metadata._MEM_FORMAT_ENCODING):
            return getattr, (type(value), value.name)
        return NotImplemented


def test_an_index_that_python_3_11_2_wrote_is_read(folder, files):
    ours = read_index(folder, PLACE, files)
    content = io.BytesIO()
    PickledByPython3112(content).dump(ours)
    assert b"getattr" in content.getvalue()
    write_index(folder, content.getvalue())
    theirs = read_index(folder, PLACE, files)
    assert theirs == ours
    assert torch.equal(read(folder, theirs), WEIGHT)


@pytest.mark.parametrize("kind", [torch.Size, metadata.Metadata])
def test_an_index_that_asks_for_an_attribute_of_anything_else_is_refused(folder, files, kind):
    class Asking:
        def __reduce__(self):
            return getattr, (kind, "__reduce__")

    write_index(folder, pickle.dumps(Asking()))
    with pytest.raises(CheckpointError, match=r"__reduce__ of .*could run code"):
        read_index(folder, PLACE, files)


def test_an_index_that_numbers_an_object_far_beyond_all_others_takes_no_memory(folder, files):
    # LONG_BINPUT: the unpickler in C would make a table of 4,294,967,295 places.
    write_index(folder, b"\x80\x02]r\xff\xff\xff\xff.")
    with pytest.raises(CheckpointError, match="is no index of tensors"):
        read_index(folder, PLACE, files)


def test_an_index_that_claims_an_array_of_bytes_takes_no_memory_for_it(folder, files):
    # BYTEARRAY8: an unpickler makes an array as long as is claimed, and then reads into it.
    write_index(folder, b"\x80\x05\x96" + struct.pack("<Q", 10**12) + b"abc.")
    with pytest.raises(CheckpointError, match="holds an array of bytes, which no index needs"):
        read_index(folder, PLACE, files)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"length": 10**12}, "points to 1000000000000 bytes from byte 0 of '__0_0.distcp'"),
        ({"offset": -1}, "from byte -1"),
        ({"length": 1.5}, "points to 1.5 bytes"),
        ({"transform_descriptors": ["zstd"]}, "compressed"),
    ],
)
def test_an_index_that_points_out_of_its_files_is_refused(folder, files, change, words):
    index = read_index(folder, PLACE, files)
    for entry in index.storage_data.values():
        entry.__dict__.update(change)
    write_index(folder, pickle.dumps(index))
    with pytest.raises(CheckpointError, match=words):
        read_index(folder, PLACE, files)


def test_a_description_that_is_too_large_is_not_read(folder, files, tmp_path):
    with (tmp_path / PLACE / tensor_files.INDEX).open("wb") as file:
        file.truncate(job_folder.MOST_WHOLE_BYTES + 1)
    with pytest.raises(StorageError, match=r"has 268435457 bytes, .* at most 268435456"):
        read_index(folder, PLACE, files)


def archive(**records):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in records.items():
            file.writestr(f"archive/{name}.pkl", data)
    return content.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (archive(data=b"\x80\x02.", zeros=bytes(2**20)), "claims more than the .* bytes"),
        # bytearray(10**12)
        (archive(data=b"\x80\x02cbuiltins\nbytearray\nL1000000000000L\n\x85R."), "claims more"),
        (b"no archive at all", "something else than tensors"),
    ],
)
def test_a_tensor_that_would_take_more_memory_than_its_file_is_refused(
    folder, files, content, words
):
    index = read_index(folder, PLACE, files)
    for entry in index.storage_data.values():
        entry.offset, entry.length = 0, len(content)
        job_folder.write(folder, f"{PLACE}/{entry.relative_path}", content)
    with pytest.raises(CheckpointError, match=words):
        read(folder, index)
