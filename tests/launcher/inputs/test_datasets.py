"""Data sets of a job: where they are, what they are called, and how the command line names them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import datasets


def artifact(uri: str, **metadata: Any) -> Any:
    return SimpleNamespace(uri=uri, metadata=metadata)


def found(names: Any = (), **artifacts: Any) -> dict[str, datasets.DataSet]:
    return datasets.by_name(artifacts, datasets.names("dataset_names", names))


@pytest.mark.parametrize(
    ("given", "uri"),
    [
        (artifact("minio://mlpipeline/v2/data"), "s3://mlpipeline/v2/data"),
        (artifact("gs://bucket/data"), "gs://bucket/data"),
        (artifact("/home/me/run/data"), "/home/me/run/data"),
        (artifact("s3://small/note", storage_uri="minio://large/data"), "s3://large/data"),
        (
            artifact("s3://small/note", storage_uri="pvc://claim/a/b"),
            "/mnt/kfp-pytorch/dataset/dataset/a/b",
        ),
    ],
)
def test_a_data_set_is_where_its_metadata_says_or_else_at_its_uri(given: Any, uri: str) -> None:
    (only,) = found(dataset=given).values()
    assert only.uri == uri


def test_the_first_name_belongs_to_the_first_artifact_and_one_that_is_not_given_is_left_out() -> (
    None
):
    read = found(["train", "more", "test"], dataset=artifact("a"), dataset_3=artifact("c"))
    assert {name: of.uri for name, of in read.items()} == {"train": "a", "test": "c"}


def test_artifacts_without_names_are_called_as_the_inputs() -> None:
    assert list(found(dataset=artifact("a"), dataset_2=artifact("b"))) == ["dataset", "dataset_2"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a", "a"], "Two data sets are called 'a'"),
        (["a b"], "'a b'; its name must be at most 63 letters"),
        (["a.b"], "'a.b'"),
        ([""], "''"),
    ],
)
def test_names_that_no_text_could_tell_apart_are_refused(names: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        found(names)


def test_a_model_without_an_export_is_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match="'dataset' is a model that was not exported: nothing"):
        found(dataset=artifact("s3://small/model", no_export="nothing was saved"))


def test_only_the_names_of_data_sets_are_replaced_in_a_text() -> None:
    read = found(["train", "val"], dataset=artifact("s3://a"), dataset_2=artifact("s3://b"))
    text = "{dataset} x={dataset.val} {data} {dataset_2} {} {{dataset}} ${dataset.train}/*"
    assert datasets.filled("args[0]", text, read) == (
        "s3://a x=s3://b {data} {dataset_2} {} {s3://a} $s3://a/*"
    )
    assert datasets.filled("args[0]", text, {}) == text


def test_a_name_that_the_job_did_not_get_is_refused_with_those_that_it_got() -> None:
    read = found(["train"], dataset=artifact("s3://a"))
    with pytest.raises(InputError, match=r"args\[0\] has \{dataset.test\}.*It got: train"):
        datasets.filled("args[0]", "--test={dataset.test}", read)


def test_a_script_is_told_of_each_with_whole_numbers_as_they_were() -> None:
    read = found(["a"], dataset=artifact("s3://a", rows=3.0, name="é"))
    assert datasets.variables(read) == {
        "KFP_PYTORCH_DATASET": "s3://a",
        "KFP_PYTORCH_DATASETS": '{"a": {"uri": "s3://a", "metadata": {"rows": 3, "name": "é"}}}',
    }
    assert datasets.variables({}) == {}
