"""Stores that are unavailable for now, and those that refuse."""

from __future__ import annotations

import errno
import http.client
import http.server
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import fsspec
import google.auth.exceptions
import pytest
import torch
from botocore import exceptions as botocore
from harness.in_process import NEVER, StopAt

from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.checkpoint import tensor_files
from kfp_pytorch.training.checkpoint.catalog import complete, path_of
from kfp_pytorch.training.data.sources import Files
from kfp_pytorch.training.data.tar_index import index_shards
from kfp_pytorch.training.errors import DataUnavailableError, StorageError, StoreUnavailableError
from kfp_pytorch.training.image import loop
from kfp_pytorch.training.lifecycle import Start
from kfp_pytorch.training.parallel.process_group import ALONE
from kfp_pytorch.training.storage.job_folder import RemoteFolder, check_writable, open_folder
from kfp_pytorch.training.storage.outages import is_outage

URL = "http://store:9000"


def caused(error: Exception, *causes: Exception) -> Exception:
    """An error that came from another, and so on."""
    lower = error
    for cause in causes:
        lower.__cause__ = cause
        lower = cause
    return error


def answered(status: int, code: str = "") -> Exception:
    """What s3fs makes of an answer."""
    response = {"ResponseMetadata": {"HTTPStatusCode": status}, "Error": {"Code": code}}
    return caused(OSError(errno.EIO, "it said so"), botocore.ClientError(response, "PutObject"))


class HttpError(Exception):
    """In the shape of gcsfs' own."""

    def __init__(self, code):
        super().__init__("it said so")
        self.code = code


def not_connected(reason: OSError) -> Exception:
    return caused(botocore.EndpointConnectionError(endpoint_url=URL), reason)


REFUSED_CONNECTION = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


@pytest.mark.parametrize(
    "error",
    [
        *map(answered, (408, 429, 500, 502, 503, 504)),
        HttpError(503),
        HttpError("502"),
        not_connected(REFUSED_CONNECTION),
        not_connected(socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")),
        botocore.ConnectTimeoutError(endpoint_url=URL),
        botocore.ReadTimeoutError(endpoint_url=URL),
        botocore.ConnectionClosedError(endpoint_url=URL),
        aiohttp.ServerDisconnectedError(),
        aiohttp.ClientPayloadError(),
        http.client.IncompleteRead(b""),
        google.auth.exceptions.TransportError("metadata.google.internal is away"),
        REFUSED_CONNECTION,
        TimeoutError("no answer"),
        OSError(errno.EHOSTUNREACH, "No route to host"),
    ],
    ids=lambda error: f"{type(error).__name__} {error}"[:60],
)
def test_a_store_that_does_not_answer_or_is_overloaded_is_unavailable(error):
    assert is_outage(error)


@pytest.mark.parametrize(
    "error",
    [
        *map(answered, (400, 401, 403, 404, 409, 412, 501)),
        HttpError(403),
        PermissionError("AccessDenied"),
        caused(FileNotFoundError("NoSuchBucket"), TimeoutError("of a try before")),
        not_connected(socket.gaierror(socket.EAI_NONAME, "Name or service not known")),
        caused(botocore.SSLError(endpoint_url=URL, error=""), ssl.SSLError("self-signed")),
        google.auth.exceptions.RefreshError("invalid_grant"),
        botocore.NoCredentialsError(),
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EIO, "Input/output error"),
        ValueError("Invalid endpoint: minio:9000"),
    ],
    ids=lambda error: f"{type(error).__name__} {error}"[:60],
)
def test_an_error_that_a_new_start_would_get_again_is_no_outage(error):
    assert not is_outage(error)


@contextmanager
def answering(status: int, code: str) -> Iterator[str]:
    """A server with one answer to everything; yields its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = f"<Error><Code>{code}</Code><Message>so it is</Message></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer  # noqa: N815

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def client_of(monkeypatch):
    """Sets the address of S3's server; its client tries once, as how often is not the story."""
    import s3fs

    def set_up(endpoint):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        s3fs.S3FileSystem.clear_instance_cache()

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    yield set_up
    s3fs.S3FileSystem.clear_instance_cache()


NOTHING_THERE = "http://127.0.0.1:9"
DATA = "s3://bucket/data"


def met(act) -> Exception | None:
    try:
        act()
    except Exception as error:
        return error
    return None


def all_ways() -> list[Exception | None]:
    """The error of each way in which a job meets a store."""
    folder = open_folder("s3://bucket/job")
    ways = (
        lambda: check_writable(folder),
        lambda: folder.names("checkpoints"),
        lambda: folder.read("metrics.json"),
        lambda: folder.sizes("checkpoints"),
        lambda: folder.remove("checkpoints"),
        lambda: Files(DATA).sizes(),
        lambda: Files(DATA).read([("a.tar", 0, 9)]),
        lambda: index_shards(Files(DATA), {"a.tar": 9}),
    )
    return [met(way) for way in ways]


@pytest.mark.parametrize("status", [None, 500, 503])
def test_each_operation_on_an_unavailable_store_says_so_and_what_to_do(client_of, status):
    with answering(status or 200, "ServiceUnavailable") as address:
        client_of(address if status else NOTHING_THERE)
        for error in all_ways():
            assert isinstance(error, StoreUnavailableError | DataUnavailableError), repr(error)
            assert "the store does not answer now" in str(error)
            assert "AWS_ENDPOINT_URL" in str(error) or "--data-dir" in str(error)


@pytest.mark.parametrize(
    ("status", "code"), [(403, "AccessDenied"), (403, "InvalidAccessKeyId"), (404, "NoSuchBucket")]
)
def test_each_operation_on_a_store_that_refuses_is_a_final_error(client_of, status, code):
    with answering(status, code) as address:
        client_of(address)
        errors = [error for error in all_ways() if error]
        assert len(errors) > 5  # a file of a bucket that is not there need not be removed
        for error in errors:
            assert not isinstance(error, StoreUnavailableError | DataUnavailableError), repr(error)
            assert "does not answer" not in str(error)


def test_whichever_request_of_a_save_fails_first_the_store_is_unavailable(monkeypatch):
    store, asked, fails_at = fsspec.filesystem("memory"), [], NEVER

    def counted(name, method):
        def ask(*arguments, **options):
            asked.append(name)
            if len(asked) >= fails_at:
                raise REFUSED_CONNECTION
            return method(*arguments, **options)

        return ask

    for name in ("exists", "find", "makedirs", "mv", "open", "put_file", "rename", "rm"):
        monkeypatch.setattr(store, name, counted(name, getattr(store, name)))

    def save():
        folder = open_folder("memory://away/save")
        tensors = {"model": {"weight": torch.zeros(3)}}
        tensor_files.write(
            *(folder, path_of(1), tensors, None),
            lambda files: complete(folder, 1, {}, files),
        )

    save()
    requests = len(asked)
    assert requests > 5
    for fails_at in range(1, requests + 1):
        asked.clear()
        error = met(save)
        assert isinstance(error, StoreUnavailableError), f"{asked[fails_at - 1]}: {error!r}"


def test_a_job_whose_store_was_unavailable_resumes_from_the_newest_checkpoint(monkeypatch):
    arguments = {"output": "memory://away/job", "max_train_samples": 128, "epochs": 3}
    config = Config(**arguments, log_every=5)
    monkeypatch.setattr(loop, "write_export", lambda *_: {})
    write, written = RemoteFolder.make, []

    def make(folder, name):
        written.append(name)
        if name == "checkpoints/step-00000004":
            # As fsspec's client of the store would, where the store is asked.
            with folder.explained("write", name):
                raise REFUSED_CONNECTION
        write(folder, name)

    monkeypatch.setattr(RemoteFolder, "make", make)
    with pytest.raises(StorageError) as lost:
        loop.train(Start(config, ALONE, StopAt()))
    assert isinstance(lost.value, StoreUnavailableError)
    assert written
    monkeypatch.setattr(RemoteFolder, "make", write)
    folder = open_folder(config.output)
    assert folder.read("checkpoints/latest") == b"step-00000002"
    assert loop.train(Start(config, ALONE, StopAt()))["step"] == 6
