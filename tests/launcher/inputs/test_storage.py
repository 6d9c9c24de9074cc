from __future__ import annotations

import pytest

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import storage


@pytest.mark.parametrize(
    ("uri", "uri_again", "in_container"),
    [
        ("pvc://claim", "pvc://claim", "/m"),
        ("pvc://claim/", "pvc://claim", "/m"),
        ("pvc://claim//sub//path/", "pvc://claim/sub/path", "/m/sub/path"),
        ("pvc://claim/my models/ü", "pvc://claim/my models/ü", "/m/my models/ü"),
        ("s3://bucket/prefix", "s3://bucket/prefix", "s3://bucket/prefix"),
        ("gs://bucket_1", "gs://bucket_1", "gs://bucket_1"),
        ("minio://mlpipeline/v2", "s3://mlpipeline/v2", "s3://mlpipeline/v2"),
    ],
)
def test_a_location_is_read_and_named_for_each_reader(
    uri: str, uri_again: str, in_container: str
) -> None:
    location = storage.parse(uri)
    assert location.uri == uri_again
    assert location.path_in_container("/m") == in_container


def test_a_job_s_folder_is_output_key_and_job() -> None:
    output = storage.parse("pvc://claim/a")
    assert output.under("run-1", "j").uri == "pvc://claim/a/run-1/j"
    assert output.under("", "j").uri == "pvc://claim/a/j"


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("/data/out", "not seen by the job's pods"),
        ("file:///data", "must begin with pvc://CLAIM"),
        ("https://x/y", "must begin with pvc://CLAIM"),
        ("PVC://claim", "must begin with pvc://CLAIM"),
        ("pvc://", "names no claim"),
        ("pvc:///sub", "names no claim"),
        ("pvc://My_Claim", "lower case"),
        ("s3://", "is no bucket"),
        ("s3://UPPER/x", "is no bucket"),
        ("s3://user:pw@host/x", "has credentials before '@'"),
        ("s3://bucket/run*", "patterns"),
        ("pvc://claim/../etc", "'..'"),
        ("pvc://claim/./x", "'.'"),
        ("pvc://claim/ x", "no blank at its ends"),
        ("pvc://claim/x\n", "control character"),
        ("s3://bucket/a\\b", "backslash"),
        ("pvc://claim/{{$.pipeline_job_uuid}}", "nothing filled in"),
    ],
)
def test_what_can_be_no_location_is_refused_with_the_way_out(uri: str, said: str) -> None:
    with pytest.raises(InputError) as raised:
        storage.parse(uri)
    assert said in raised.value.message
    assert "output_uri" in raised.value.message


@pytest.mark.parametrize(
    ("uri", "read"),
    [
        ("minio://mlpipeline/v2/artifacts/x", "s3://mlpipeline/v2/artifacts/x"),
        ("s3://b/k", "s3://b/k"),
        ("gs://b/k", "gs://b/k"),
        ("pvc://claim/run/export", "pvc://claim/run/export"),
        ("hf://org/model", "hf://org/model"),
        ("https://acct.blob.core.windows.net/c/m", "https://acct.blob.core.windows.net/c/m"),
    ],
)
def test_a_model_s_uri_is_written_as_kserve_reads_it(uri: str, read: str) -> None:
    assert storage.kserve_uri(uri) == read


@pytest.mark.parametrize(
    "uri",
    [
        *("", "/tmp/model", "model", "mem://x", "ftp://h/m"),
        *("s3://", "minio://", "s3:///key", "pvc:///path", "minio:///key"),
    ],
)
def test_a_model_where_kserve_cannot_read_is_refused(uri: str) -> None:
    with pytest.raises(InputError, match="KServe cannot read the model"):
        storage.kserve_uri(uri)
