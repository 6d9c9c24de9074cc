"""A job's folder: a local folder for a path, an object store through fsspec for a URI.

A file appears under its name complete or not at all, however the process ends.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

from kfp_pytorch.launcher.constants import BUCKET_PATTERNS, OUTPUT_ENV
from kfp_pytorch.training.errors import StorageError, StoreUnavailableError
from kfp_pytorch.training.storage import outages

_HINTS = {
    "minio": "write it as s3://BUCKET/KEY and set AWS_ENDPOINT_URL to the MinIO server",
    "pvc": "a claim is mounted by the launcher: give the path where it is mounted",
    "http": "a web server cannot be written to: give a path, s3:// or gs://",
    "https": "a web server cannot be written to: give a path, s3:// or gs://",
}
_FOLDER_HINT = (
    "see that the folder exists, is writable for this user and has room, or give another with "
    f"--output or {OUTPUT_ENV}"
)
_S3_HINT = (
    "see that the bucket exists, and that AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, where the "
    "server is not Amazon's, AWS_ENDPOINT_URL are those of its owner"
)
_GCS_HINT = (
    "see that the bucket exists, and that the service account or GOOGLE_APPLICATION_CREDENTIALS "
    "may read and write it"
)
_BUCKET_HINTS = {"s3": _S3_HINT, "s3a": _S3_HINT, "gs": _GCS_HINT, "gcs": _GCS_HINT}
# A misspelt URI, which would be a folder in this container.
_ONE_SLASH = re.compile(r"[a-z][a-z0-9]+:/(?!/)")
# The packages whose errors fsspec's clients of object stores raise.
_STORE_PACKAGES = ("botocore", "aiobotocore", "aiohttp", "gcsfs", "google")
_STORE_SIGNS = ("endpoint", "Bad Request")
# What some network file systems answer to the fsync of a folder: they have no such operation.
_CANNOT_SYNC_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF)
# Of a file that is read whole: descriptions and indexes, which have a few megabytes at most.
MOST_WHOLE_BYTES = 2**28


class Folder(ABC):
    """A folder that training reads and writes. Names are relative and use `/`.

    Where the file system refuses, every method raises StorageError, which says what to do.
    """

    uri: str  # its path or URI
    _hint = _FOLDER_HINT

    def read(self, name: str) -> bytes:
        """The content of a file of at most `MOST_WHOLE_BYTES`. Raises FileNotFoundError."""
        with self.explained("read", name):
            size = self._size(name)
            if size > MOST_WHOLE_BYTES:
                raise StorageError(
                    f"{self._at(name)} has {size} bytes, and such a file of a job has at most "
                    f"{MOST_WHOLE_BYTES}; it is damaged or of another program: delete it, or give "
                    "another folder"
                )
            return self._read(name)

    @contextmanager
    def reader(self, name: str) -> Iterator[IO[bytes]]:
        """A context with a file of any size, which can be sought in. Raises FileNotFoundError."""
        with self.explained("read", name), self._reader(name) as file:
            yield file

    def names(self, name: str = "") -> list[str]:
        """The names in a subfolder, sorted; empty if it does not exist."""
        with self.explained("list", name):
            return sorted(self._names(name))

    def sizes(self, name: str) -> dict[str, int]:
        """The size in bytes of each file in a subfolder, and of those in its own subfolders."""
        with self.explained("list", name):
            return self._sizes(name)

    def make(self, name: str) -> None:
        """Makes a subfolder, where the store has folders."""
        with self.explained("write", name):
            self._make(name)

    @contextmanager
    def writer(self, name: str) -> Iterator[IO[bytes]]:
        """A context with a binary file, whose content takes the place of `name` at the end."""
        with self.explained("write", name), self._writer(name) as file:
            yield file

    def remove(self, name: str) -> None:
        """Deletes a file, or a folder with all its content, if it exists."""
        with self.explained("remove", name):
            self._remove(name)

    @contextmanager
    def explained(self, action: str, name: str) -> Iterator[None]:
        """A context that turns errors of the file system into one that says what to do."""
        try:
            yield
        except OSError as error:
            if action == "read" and isinstance(error, FileNotFoundError):
                raise
            raise self._failed(action, name, error, error.strerror) from error
        except Exception as error:
            # The errors of object stores' clients share no base class; for an invalid address
            # (s3fs) or request (gcsfs) they are ValueErrors.
            package = type(error).__module__.partition(".")[0]
            if package in _STORE_PACKAGES or any(sign in str(error) for sign in _STORE_SIGNS):
                raise self._failed(action, name, error) from error
            raise

    def _failed(
        self, action: str, name: str, error: Exception, reason: str | None = None
    ) -> StorageError:
        words = f"cannot {action} {self._at(name)}: {reason or error};"
        if outages.is_outage(error):
            return StoreUnavailableError(f"{words} {outages.UNAVAILABLE} {self._hint}")
        return StorageError(f"{words} {self._hint}")

    @abstractmethod
    def _at(self, name: str) -> str: ...
    @abstractmethod
    def _size(self, name: str) -> int: ...
    @abstractmethod
    def _read(self, name: str) -> bytes: ...
    @abstractmethod
    def _reader(self, name: str) -> AbstractContextManager[IO[bytes]]: ...
    @abstractmethod
    def _names(self, name: str) -> Iterable[str]: ...
    @abstractmethod
    def _sizes(self, name: str) -> dict[str, int]: ...
    @abstractmethod
    def _make(self, name: str) -> None: ...
    @abstractmethod
    def _writer(self, name: str) -> AbstractContextManager[IO[bytes]]: ...
    @abstractmethod
    def _remove(self, name: str) -> None: ...


class LocalFolder(Folder):
    """A folder in a local file system or a mounted volume."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = str(path)

    def _at(self, name: str) -> str:
        return str(self.path / name)

    def _size(self, name: str) -> int:
        return (self.path / name).stat().st_size

    def _read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def _reader(self, name: str) -> AbstractContextManager[IO[bytes]]:
        return (self.path / name).open("rb")

    def _names(self, name: str) -> Iterable[str]:
        try:
            return [entry.name for entry in (self.path / name).iterdir()]
        except FileNotFoundError:
            return []

    def _sizes(self, name: str) -> dict[str, int]:
        root = self.path / name
        paths = [
            Path(folder, each)
            for folder, _, names in os.walk(root, onerror=_raise)
            for each in names
        ]
        return {path.relative_to(root).as_posix(): path.stat().st_size for path in paths}

    def _make(self, name: str) -> None:
        (self.path / name).mkdir(parents=True, exist_ok=True)

    @contextmanager
    def _writer(self, name: str) -> Iterator[IO[bytes]]:
        """Writes a temporary file, syncs it, and renames it."""
        target = self.path / name
        temporary = target.with_name(f".{target.name}.{os.urandom(4).hex()}.tmp")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
            sync_folder(target.parent)
        except BaseException:
            # There is nothing to delete if the folder could not be made.
            if temporary.parent.is_dir():
                temporary.unlink(missing_ok=True)
            raise

    def _remove(self, name: str) -> None:
        path = self.path / name
        if path.is_symlink() and path.is_dir():
            # The link is kept, for what is written later.
            for entry in path.iterdir():
                self._remove(f"{name}/{entry.name}")
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


class RemoteFolder(Folder):
    """A folder in an object store, where a file appears when its upload is complete."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        try:
            # A local folder does not need fsspec.
            import fsspec

            self._store, self._root = fsspec.core.url_to_fs(self.uri)
        except (ImportError, OSError, ValueError) as error:
            raise StorageError(
                f"the folder {uri!r} cannot be used: {error}; "
                "paths, s3:// and gs:// can (install s3fs or gcsfs)"
            ) from error
        scheme = uri.partition("://")[0]
        self._is_bucket = scheme in _BUCKET_HINTS
        self._hint = _BUCKET_HINTS.get(scheme, _FOLDER_HINT)

    def _at(self, name: str) -> str:
        return f"{self.uri}/{name}"

    def _key(self, name: str) -> str:
        return f"{self._root}/{name}" if name else str(self._root)

    def _size(self, name: str) -> int:
        self._store.invalidate_cache()
        return int(self._store.info(self._key(name))["size"] or 0)

    def _read(self, name: str) -> bytes:
        content: bytes = self._store.cat_file(self._key(name))
        return content

    @contextmanager
    def _reader(self, name: str) -> Iterator[IO[bytes]]:
        with tempfile.NamedTemporaryFile(prefix="kfp-pytorch-") as file:
            self._store.get_file(self._key(name), file.name)
            yield file

    def _names(self, name: str) -> Iterable[str]:
        # By files, not by folders: some servers, such as SeaweedFS, list empty folders.
        return {each.partition("/")[0] for each in self._sizes(name)} - {""}

    def _sizes(self, name: str) -> dict[str, int]:
        root = self._key(name).rstrip("/") + "/"
        self._store.invalidate_cache()
        found = self._store.find(root, detail=True)
        return {str(path)[len(root) :]: int(facts["size"]) for path, facts in found.items()}

    def _make(self, name: str) -> None:
        """Does nothing for a bucket, which has no folders; s3fs would make the bucket itself."""
        if not self._is_bucket:
            self._store.makedirs(self._key(name), exist_ok=True)

    @contextmanager
    def _writer(self, name: str) -> Iterator[IO[bytes]]:
        """Writes a temporary file, then uploads it: fsspec's own would upload an incomplete one."""
        with tempfile.NamedTemporaryFile(prefix="kfp-pytorch-") as file:
            yield file
            file.flush()
            self.make(name.rpartition("/")[0])
            self._store.put_file(file.name, self._key(name))

    def _remove(self, name: str) -> None:
        self._store.invalidate_cache()
        if self._store.exists(self._key(name)):
            self._store.rm(self._key(name), recursive=True)


def open_folder(uri: str) -> Folder:
    """Opens the folder of a path or fsspec URI. Nothing is made or read yet."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        if _ONE_SLASH.match(uri):
            raise StorageError(
                f"the folder {uri!r} is no URI: write two slashes, as in s3://BUCKET/KEY"
            )
        return LocalFolder(Path(uri))
    if scheme == "file":
        if not rest.startswith("/"):
            raise StorageError(
                f"the folder {uri!r} names a host or a relative path: write three slashes, "
                "as in file:///PATH"
            )
        return LocalFolder(Path(rest))
    if scheme in _HINTS:
        raise StorageError(f"the folder {uri!r} cannot be used: {_HINTS[scheme]}")
    if scheme in _BUCKET_HINTS and not rest.strip("/"):
        raise StorageError(f"the folder {uri!r} names no bucket; write {scheme}://BUCKET/KEY")
    if BUCKET_PATTERNS & set(rest):
        raise StorageError(
            f"the folder {uri!r} cannot be used: *, ? and [ are patterns to the clients of object "
            "stores, which would delete what others wrote; give one without"
        )
    return RemoteFolder(uri)


def write(folder: Folder, name: str, content: bytes) -> None:
    """Writes a whole file. Raises StorageError: if it cannot be written."""
    with folder.writer(name) as file:
        file.write(content)


def _raise(error: OSError) -> None:
    raise error


def check_writable(folder: Folder) -> None:
    """Checks at the start, not after an epoch, that a folder can be written to; or StorageError."""
    probe = f".writable-{os.getpid()}"
    write(folder, probe, b"")
    folder.remove(probe)


def sha256(path: Path) -> str:
    """The hash of a file's content, in hexadecimal. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(path: Path) -> None:
    """Makes a rename survive a crash, where the file system can. Raises OSError: it failed to."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC_FOLDERS:
            raise
    finally:
        os.close(descriptor)
