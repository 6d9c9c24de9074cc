"""The files that `--secrets` and `--runtimes` name."""

from __future__ import annotations

import base64

import click
import pytest
import yaml

from kfp_pytorch.client.packages.given_objects import RUNTIME_KINDS, SECRET_KINDS, read

HIDDEN = "hidden-value"


def data(secret):
    return {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}


def test_yaml_with_several_documents_is_read(tmp_path):
    path = tmp_path / "all.yaml"
    secret = {
        "kind": "Secret",
        "metadata": {"name": "s", "namespace": "prod"},
        "stringData": {"a": HIDDEN},
        "data": {"b": "Yg=="},
    }
    listed = {"kind": "List", "items": [{"kind": "ConfigMap", "metadata": {"name": "c"}}]}
    path.write_text(yaml.safe_dump_all([secret, None, listed]))
    found, other = read((path,), SECRET_KINDS)
    assert data(found) == {"a": HIDDEN, "b": "b"}
    assert found["metadata"] == {"name": "s"}
    assert other["kind"] == "ConfigMap"


def test_what_kubectl_writes_of_a_cluster_is_read(tmp_path):
    exported = {
        "name": "s",
        "namespace": "prod",
        "resourceVersion": "1",
        "uid": "u",
        "ownerReferences": [{"kind": "X", "name": "x", "uid": "y"}],
        "annotations": {"serving.kserve.io/s3-endpoint": "e"},
    }
    secret = {"kind": "Secret", "metadata": exported, "data": {"k": "YW\nJj\n"}}
    config = {"kind": "ConfigMap", "metadata": {"name": "c"}, "binaryData": {"b": "AP8="}}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"kind": "SecretList", "items": [secret]}))
    (tmp_path / "b.yaml").write_text(yaml.safe_dump([config]))
    found, other = read((tmp_path,), SECRET_KINDS)
    kept = {name: exported[name] for name in ("name", "annotations")}
    assert (found["metadata"], data(found)) == (kept, {"k": "abc"})
    assert other["binaryData"] == {"b": "AP8="}


def test_a_file_of_variables_is_a_secret_of_its_name(tmp_path):
    path = tmp_path / "s3.env"
    path.write_text('# a comment\n\nexport A=1\nB="two words"\nC=x=y\nD=\n')
    (found,) = read((path,), SECRET_KINDS)
    assert found["metadata"]["name"] == "s3"
    assert data(found) == {"A": "1", "B": "two words", "C": "x=y", "D": ""}


def test_a_folder_holds_files_and_secrets_as_they_are_mounted(tmp_path):
    (tmp_path / "token").mkdir()
    (tmp_path / "token" / "key").write_text(HIDDEN)
    (tmp_path / "token" / "..data").mkdir()
    (tmp_path / "s3.env").write_text("A=1")
    (tmp_path / "README").write_text("not read")
    found = {each["metadata"]["name"]: data(each) for each in read((tmp_path,), SECRET_KINDS)}
    assert found == {"s3": {"A": "1"}, "token": {"key": HIDDEN}}


def test_of_two_of_one_name_the_later_counts(tmp_path):
    for name, value in (("a", "1"), ("b", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "s.env").write_text(f"K={value}")
    (found,) = read((tmp_path / "a", tmp_path / "b"), SECRET_KINDS)
    assert data(found) == {"K": "2"}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.yaml", f"a: [{HIDDEN}", "is no YAML from line"),
        ("a.yaml", f"kind: Pod\nx: {HIDDEN}", "has an object of kind Pod; give Secret, ConfigMap"),
        ("a.yaml", f"- {HIDDEN}", "has an object of kind None"),
        ("a.yaml", f"kind: Secret\nx: {HIDDEN}", "has a Secret without metadata.name"),
        (
            "a.yaml",
            f"kind: Secret\nmetadata: {{name: s}}\ndata: {{k: {HIDDEN}}}",
            "has 'k' of the Secret s not in base64; write it under stringData",
        ),
        ("a.env", f"A=1\n{HIDDEN}", "has no KEY=VALUE in line 2"),
        (
            "a.yaml",
            "kind: Secret\nmetadata: {name: s}\nstringData: {port: 5432}",
            "has 'port' of the Secret s, which is no text; put it in quotation marks",
        ),
        (
            "a.yaml",
            "kind: ConfigMap\nmetadata: {name: c}\ndata: [a]",
            "has the ConfigMap c, whose data is no mapping",
        ),
        (".env", f"A={HIDDEN}", "is neither a folder nor a file NAME.yaml, NAME.json or NAME.env"),
    ],
)
def test_what_is_wrong_is_said_without_a_value(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(click.ClickException) as caught:
        read((tmp_path / name,), SECRET_KINDS)
    assert words in caught.value.message
    assert str(tmp_path / name) in caught.value.message
    assert HIDDEN not in caught.value.message


def test_what_holds_nothing_is_said_so(tmp_path):
    (tmp_path / "key").write_text(HIDDEN)
    (tmp_path / "prod" / "token").mkdir(parents=True)
    with pytest.raises(click.ClickException) as caught:
        read((tmp_path,), SECRET_KINDS)
    assert caught.value.message == (
        f"{tmp_path} has no Secret, ConfigMap, PersistentVolumeClaim, and no folder NAME with a "
        "file for each key."
    )


def test_a_runtime_of_the_whole_cluster_is_one_of_the_runs_namespace(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("kind: ClusterServingRuntime\nmetadata: {name: r}\nspec: {containers: []}")
    (found,) = read((path,), RUNTIME_KINDS)
    assert found["kind"] == "ServingRuntime"
