"""A job's folder on file systems that differ from those of this machine."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kfp_pytorch.training.errors import StorageError
from kfp_pytorch.training.storage import job_folder
from kfp_pytorch.training.storage.job_folder import open_folder, sync_folder

# A file system whose folders have no fsync: the system answers EINVAL, as for some network ones.
UNSYNCED = Path("/proc/self")


@pytest.mark.skipif(not UNSYNCED.is_dir(), reason="there is no /proc")
def test_a_folder_that_cannot_be_synced_is_no_failure():
    descriptor = os.open(UNSYNCED, os.O_RDONLY)
    with pytest.raises(OSError, match="Invalid argument"):
        os.fsync(descriptor)
    os.close(descriptor)
    sync_folder(UNSYNCED)


def test_a_folder_whose_sync_fails_is_a_failure(tmp_path, monkeypatch):
    sync = os.fsync

    def fail_for_folders(descriptor):
        if Path(f"/proc/self/fd/{descriptor}").is_dir():
            raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_for_folders)
    with pytest.raises(StorageError, match="Input/output error"):
        job_folder.write(open_folder(str(tmp_path)), "name", b"content")
