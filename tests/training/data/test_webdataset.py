"""Images in tar files: indexed, read together, and refused where they cannot be used."""

from __future__ import annotations

import json
import tarfile

import pytest
from harness.pictures import make_folder, make_shard, make_shards, picture

from kfp_pytorch.training import shard_index
from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.data import datasets, tar_index, webdataset
from kfp_pytorch.training.data.sources import Files
from kfp_pytorch.training.errors import DataError
from kfp_pytorch.training.parallel.process_group import ALONE


def test_neighbours_in_a_shard_are_read_together(tmp_path, monkeypatch):
    make_shards(tmp_path)
    asked = []
    read = Files.read
    monkeypatch.setattr(
        Files, "read", lambda self, ranges: asked.extend(ranges) or read(self, ranges)
    )
    found = datasets.load(Config(dataset="shards", data_dir=str(tmp_path), workers=0), ALONE)
    asked.clear()
    contents = found.train.contents([4, 5, 6, 7, 30, 31, 18, 19, 2])
    assert [content.numpy().tobytes() for content in contents] == [
        picture(number) for number in (4, 5, 6, 7, 30, 31, 18, 19, 2)
    ]
    assert len(asked) == 5


@pytest.mark.parametrize(
    ("replaced", "reason"),
    [
        ({"cls": None}, r"train-9.tar cannot be used: the sample some/001 lacks a class \(.cls\)"),
        ({"jpg": None}, "the sample some/001 lacks an image"),
        ({"cls": b"cat"}, "001.cls holds b'cat', which is no number of a class"),
        ({"cls": b"9" * 20}, "001.cls holds 9+; there can be 1000000 classes"),
    ],
)
def test_shards_that_cannot_be_used_are_named_with_the_reason(tmp_path, replaced, reason):
    make_shard(tmp_path / "train-9.tar", [1], **replaced)
    with pytest.raises(DataError, match=reason):
        webdataset.find(str(tmp_path), ALONE, 1)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda content, end: content[:end], "cut short or one of several in a row at byte"),
        (lambda content, end: content[:end] + b"U" * 512 + content[end + 512 :], "it is damaged"),
        (lambda content, end: content[:end] + b"\0" * 512 + content[end + 512 :], "it is damaged"),
        (lambda content, _end: content + content, "one of several in a row"),
    ],
)
def test_a_damaged_header_in_a_shard_is_refused(tmp_path, spoil, reason):
    make_shard(tmp_path / "a.tar", range(9))
    content = (tmp_path / "a.tar").read_bytes()
    with tarfile.open(tmp_path / "a.tar") as tar:
        (tmp_path / "a.tar").write_bytes(spoil(content, tar.getmembers()[4].offset))
    with pytest.raises(DataError, match=reason):
        webdataset.find(str(tmp_path), ALONE, 1)


def test_the_same_sample_twice_in_sequence_is_refused(tmp_path):
    make_shard(tmp_path / "a.tar", [1, 1])
    with pytest.raises(DataError, match="the sample some/001 comes twice, or has two images"):
        webdataset.find(str(tmp_path), ALONE, 1)


def test_hidden_files_in_a_shard_are_no_samples(tmp_path):
    make_shard(tmp_path / "a.tar", [1, 2])
    with tarfile.open(tmp_path / "a.tar", "a") as tar:
        tar.add(tmp_path / "a.tar", "some/._001.jpg")
    assert len(webdataset.find(str(tmp_path), ALONE, 1).labels) == 2


def test_a_shard_that_was_cut_short_or_packed_is_refused(tmp_path):
    make_shard(tmp_path / "a.tar", range(9))
    content = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(content[:2000])
    with pytest.raises(DataError, match=r"a\.tar cannot be used"):
        webdataset.find(str(tmp_path), ALONE, 1)
    (tmp_path / "a.tar").rename(tmp_path / "a.tar.gz")
    with pytest.raises(DataError, match=r"a\.tar\.gz is compressed"):
        webdataset.find(str(tmp_path), ALONE, 1)


def test_an_index_beside_the_shards_is_used_instead_of_reading_them(tmp_path, monkeypatch):
    make_shards(tmp_path)
    files = Files(str(tmp_path))
    shards = tar_index.index_shards(files, tar_index.shard_names(files))
    (tmp_path / tar_index.INDEX).write_text(json.dumps(tar_index.as_json(shards)))
    (tmp_path / "classes.txt").write_text("even\nodd\n")
    monkeypatch.setattr(tar_index, "index_shards", None)
    found = webdataset.find(str(tmp_path), ALONE, 1)
    assert found.classes == ("even", "odd")
    assert found.labels.tolist() == [number % 2 for number in range(47)]
    make_shard(tmp_path / "train-1.tar", range(20, 50))
    with pytest.raises(DataError, match=r"not of these shards: train-1.tar is another"):
        webdataset.find(str(tmp_path), ALONE, 1)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("offsets", -1, "some/000 does not lie within train-9.tar"),
        ("sizes", 10**9, "some/000 does not lie within train-9.tar"),
        ("offsets", 1.5, "are no whole numbers"),
        ("labels", 10**18, "is of class 1000000000000000000"),
    ],
)
def test_an_index_that_points_out_of_its_shard_is_refused(tmp_path, field, value, reason):
    make_shard(tmp_path / "train-9.tar", [0])
    files = Files(str(tmp_path))
    shards = tar_index.index_shards(files, tar_index.shard_names(files))
    index = tar_index.as_json(shards)
    index["shards"][0][field] = [value]
    (tmp_path / tar_index.INDEX).write_text(json.dumps(index))
    with pytest.raises(DataError, match=reason):
        webdataset.find(str(tmp_path), ALONE, 1)


def test_an_index_is_printed_or_the_error(tmp_path, capsys):
    make_shard(tmp_path / "train-9.tar", [0, 1])
    assert shard_index.main([str(tmp_path)]) == 0
    (shard,) = json.loads(capsys.readouterr().out)["shards"]
    assert shard["keys"] == ["some/000", "some/001"]
    assert shard_index.main([str(tmp_path / "nowhere")]) == 1
    assert "there is no such folder" in capsys.readouterr().err
    assert shard_index.main([]) == 2
    assert capsys.readouterr().err.startswith("usage: ")


@pytest.mark.parametrize("name", ["test-0.tar", "test/0.tar"])
def test_shards_of_a_test_set_are_left_out_and_named(tmp_path, caplog, name):
    make_shards(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    # As in a competition, whose answers are not known.
    make_shard(tmp_path / name, [47, 48], cls=None)
    with caplog.at_level("INFO"):
        found = webdataset.find(str(tmp_path), ALONE, 1)
    assert len(found.labels) == 47
    assert f"left out 1 shards of a test set, such as {name}" in caplog.text


def test_an_index_that_has_the_shards_of_a_test_set_too_is_used_without_them(tmp_path):
    make_shards(tmp_path)
    make_shard(tmp_path / "test-0.tar", [47, 48])
    files = Files(str(tmp_path))
    tars = {name: size for name, size in files.sizes().items() if name.endswith(".tar")}
    every = tar_index.index_shards(files, tars)
    (tmp_path / tar_index.INDEX).write_text(json.dumps(tar_index.as_json(every)))
    assert len(webdataset.find(str(tmp_path), ALONE, 1).labels) == 47


def test_shards_that_are_all_called_test_are_trained_on(tmp_path):
    for number in range(2):
        make_shard(tmp_path / f"test-{number}.tar", range(number * 9, number * 9 + 9))
    assert len(webdataset.find(str(tmp_path), ALONE, 1).labels) == 18


def test_names_of_classes_are_those_of_a_file_from_windows(tmp_path):
    make_shards(tmp_path)
    (tmp_path / "classes.txt").write_bytes("\ufeffeven\r\nodd\r\n\r\n".encode())
    assert webdataset.find(str(tmp_path), ALONE, 1).classes == ("even", "odd")
    (tmp_path / "classes.txt").write_text("even\n\nodd\n")
    with pytest.raises(DataError, match=r"classes.txt names no class on line 2, and those after"):
        webdataset.find(str(tmp_path), ALONE, 1)


def test_a_folder_without_shards_is_refused(tmp_path):
    make_folder(tmp_path)
    with pytest.raises(DataError, match=r"holds no .tar files; give their folder"):
        webdataset.find(str(tmp_path), ALONE, 1)


def test_more_classes_than_are_named_are_refused(tmp_path):
    make_shards(tmp_path)
    (tmp_path / "classes.txt").write_text("even\n")
    with pytest.raises(DataError, match=r"names 1 classes, and there is a sample of class 1"):
        webdataset.find(str(tmp_path), ALONE, 1)
