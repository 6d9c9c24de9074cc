"""The job's folder on a real S3 server."""

from __future__ import annotations

import functools

import pytest
import torch
from harness.s3 import BUCKET

from kfp_pytorch.training.checkpoint import catalog, tensor_files
from kfp_pytorch.training.checkpoint.index import read_index
from kfp_pytorch.training.errors import StorageError
from kfp_pytorch.training.storage.job_folder import check_writable, open_folder, write

NOTHING_THERE = "http://127.0.0.1:9"


@pytest.fixture
def client(s3, monkeypatch):
    """Sets the variables of S3's clients, with changes."""
    import s3fs

    def set_up(**changes):
        for name, value in (s3.environment | changes).items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()

    yield set_up
    s3fs.S3FileSystem.clear_instance_cache()


def test_a_checkpoint_is_read_back_and_older_ones_are_deleted(client, s3):
    client()
    folder = open_folder(f"s3://{BUCKET}/checkpoints-come-back")
    for step in (1, 2, 3):
        weights = {"weights": torch.full((4,), float(step))}
        done = functools.partial(catalog.complete, folder, step, {"model": "m"})
        tensor_files.write(folder, catalog.path_of(step), weights, None, done)
    # What an upload that was cut short leaves: tensors without their description.
    write(folder, "checkpoints/step-00000004/__0_0.distcp", b"half")
    found = catalog.newest(folder, {"model": "m"})
    assert found.step == 3
    index = read_index(folder, found.path, found.meta["files"])
    read = {"weights": torch.zeros(4)}
    tensor_files.read(folder, found.path, index, read, None)
    assert read["weights"].tolist() == [3.0] * 4
    catalog.discard_after(folder, found.step)
    catalog.prune(folder, keep=1)
    assert folder.names("checkpoints") == ["latest", "step-00000003"]
    assert folder.read("checkpoints/latest") == b"step-00000003"


def test_a_folder_that_is_not_there_is_empty_and_reading_from_it_says_so(client):
    client()
    folder = open_folder(f"s3://{BUCKET}/never/written")
    assert folder.names() == []
    with pytest.raises(FileNotFoundError):
        folder.read("metrics.json")
    folder.remove("checkpoints")


@pytest.mark.parametrize(
    ("bucket", "changes", "words"),
    [
        (BUCKET, {"AWS_SECRET_ACCESS_KEY": "wrong"}, "signature"),
        (BUCKET, {"AWS_ACCESS_KEY_ID": "nobody"}, "access key ID you provided does not exist"),
        ("no-such-bucket", {}, "bucket does not exist"),
        (BUCKET, {"AWS_ENDPOINT_URL": "minio:9000"}, "Invalid endpoint: minio:9000"),
        pytest.param(
            *(BUCKET, {"AWS_ENDPOINT_URL": NOTHING_THERE}, "Could not connect to the endpoint"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_bucket_that_cannot_be_written_to_is_named_with_what_to_check(
    client, bucket, changes, words
):
    client(**changes)
    with pytest.raises(StorageError) as refused:
        check_writable(open_folder(f"s3://{bucket}/job"))
    message = str(refused.value)
    assert f"s3://{bucket}/job" in message
    assert words in message
    assert "AWS_ENDPOINT_URL" in message
    assert "the-secret" not in message


def test_a_bucket_is_not_made_because_its_name_was_misspelt(client, s3):
    client()
    with pytest.raises(StorageError):
        check_writable(open_folder("s3://kfp-pytorhc/job"))
    assert s3.files.ls("") == [BUCKET]
