"""Images in files: found, dealt out, read, decoded, and named where they are broken."""

from __future__ import annotations

import io
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import fsspec
import pytest
import torch
from torchvision.io import encode_jpeg, encode_png

from kfp_pytorch.training import (
    data,
    decode,
    encoded,
    feed,
    input_folder,
    input_shards,
    shard_index,
)
from kfp_pytorch.training.config import Config
from kfp_pytorch.training.distributed import ALONE, World
from kfp_pytorch.training.errors import ConfigError, DataError
from kfp_pytorch.training.sampler import DistributedBatchSampler, evaluation_shards
from kfp_pytorch.training.sources import Files

CPU = torch.device("cpu")
# Grey tells which image it is, whatever is cut out of it.
STEP = 5
CLASSES = ("blue", "green")


def picture(number, encode=encode_jpeg):
    height, width = 20 + number % 7, 30 - number % 5
    grey = torch.full((3, height, width), number * STEP, dtype=torch.uint8)
    return encode(grey).numpy().tobytes()


def number_of(image):
    return round(image.float().mean().item() / STEP)


def make_folder(root, train=37, val=10):
    for number in range(train + val):
        path = root / ("train" if number < train else "val") / CLASSES[number % 2]
        path.mkdir(parents=True, exist_ok=True)
        (path / f"{number:03}.jpg").write_bytes(picture(number))
    return root


def make_shard(path, numbers, **replaced):
    with tarfile.open(path, "w") as tar:
        for number in numbers:
            files = {"jpg": picture(number), "cls": str(number % 2).encode(), **replaced}
            for suffix, content in files.items():
                if content is not None:
                    member = tarfile.TarInfo(f"some/{number:03}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def make_shards(root):
    """Shards of very different sizes."""
    for name, numbers in (
        ("train-0", range(19)),
        ("train-1", range(19, 20)),
        ("train-2", range(20, 37)),
        ("val-0", range(37, 47)),
    ):
        make_shard(root / f"{name}.tar", numbers)
    return root


MAKERS = {"imagefolder": make_folder, "shards": make_shards}


@pytest.fixture(params=sorted(MAKERS))
def settings(request, tmp_path):
    root = MAKERS[request.param](tmp_path)
    return {"dataset": request.param, "data_dir": str(root), "image_size": 8, "shuffle_block": 4}


def seen_by(config, rank=0, ranks=1, epoch=0, start=0, batch=4, steps=None):
    """The images, as pixels, that a rank trains on in the rest of an epoch, and their labels."""
    found = data.load(config, ALONE)
    count = len(found.train.labels)
    sampler = DistributedBatchSampler(count, rank, ranks, batch, config.seed, found.block)
    sampler.set_epoch(epoch, start)
    source = feed.open_feed(config, World(rank, rank, ranks, CPU), found)
    images, labels = [], []
    for part, samples in itertools.islice(source.train(epoch, sampler), steps):
        assert len(samples.labels) == len(part.indices)
        images += samples.images[: part.count]
        labels += samples.labels[: part.count].tolist()
    source.close()
    return images, labels


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_image_comes_once_an_epoch_with_its_class_over_all_ranks(settings, ranks):
    config = Config(**settings, workers=0)
    parts = [seen_by(config, rank, ranks) for rank in range(ranks)]
    numbers = [number_of(image) for images, _ in parts for image in images]
    labels = [label for _, labels in parts for label in labels]
    assert sorted(numbers) == list(range(37))
    assert labels == [number % 2 for number in numbers]


def test_worker_processes_give_the_very_pixels_in_the_very_order_of_one_process(settings):
    expected, _ = seen_by(Config(**settings, workers=0), rank=1, ranks=2, epoch=2)
    found, _ = seen_by(Config(**settings, workers=2), rank=1, ranks=2, epoch=2)
    assert torch.equal(torch.stack(found), torch.stack(expected))


def test_an_epoch_goes_on_at_the_step_where_it_was_left_with_the_very_pixels(settings):
    config = Config(**settings, workers=0)
    whole, _ = seen_by(config, epoch=1)
    before, _ = seen_by(config, epoch=1, steps=3)
    after, _ = seen_by(config, epoch=1, start=len(before))
    assert torch.equal(torch.stack([*before, *after]), torch.stack(whole))
    # With other ranks the same images are left.
    others = [seen_by(config, rank, 3, epoch=1, start=len(before))[0] for rank in range(3)]
    rest = sorted(number_of(image) for images in others for image in images)
    assert rest == sorted(map(number_of, after))


def test_order_and_crops_are_others_in_each_epoch_and_with_each_seed(settings):
    def order(**changes):
        epoch = changes.pop("epoch", 0)
        return list(
            map(number_of, seen_by(Config(**settings, workers=0, **changes), epoch=epoch)[0])
        )

    assert len({tuple(order(epoch=epoch)) for epoch in range(3)}) == 3
    assert order(seed=1) != order()


def test_held_out_images_are_each_judged_once_over_uneven_ranks(settings):
    config = Config(**settings, workers=0)
    found = data.load(config, ALONE)
    numbers = []
    for rank in range(3):
        source = feed.open_feed(config, World(rank, rank, 3, CPU), found)
        shards = evaluation_shards(len(found.held_out.labels), rank, 3, 2)
        batches = list(source.held_out(shards))
        assert len(batches) == len(shards)
        numbers += [number_of(image) for batch in batches for image in batch.images]
    assert sorted(numbers) == list(range(37, 47))


def test_an_object_store_gives_what_a_folder_gives(settings, tmp_path):
    store = fsspec.filesystem("memory")
    place = f"/{tmp_path.name}"
    store.put(f"{tmp_path}/", f"{place}/", recursive=True)
    there = {**settings, "data_dir": f"memory:/{place}"}
    expected, labels = seen_by(Config(**settings, workers=0))
    found, found_labels = seen_by(Config(**there, workers=0))
    assert torch.equal(torch.stack(found), torch.stack(expected))
    assert found_labels == labels


def test_neighbours_in_a_shard_are_read_together(tmp_path, monkeypatch):
    make_shards(tmp_path)
    asked = []
    read = Files.read
    monkeypatch.setattr(
        Files, "read", lambda self, ranges: asked.extend(ranges) or read(self, ranges)
    )
    found = data.load(Config(dataset="shards", data_dir=str(tmp_path), workers=0), ALONE)
    asked.clear()
    contents = found.train.contents([4, 5, 6, 7, 30, 31, 18, 19, 2])
    assert [content.numpy().tobytes() for content in contents] == [
        picture(number) for number in (4, 5, 6, 7, 30, 31, 18, 19, 2)
    ]
    assert len(asked) == 5


def test_without_held_out_files_a_fixed_share_of_each_class_is_held_out(tmp_path):
    make_folder(tmp_path, train=40, val=0)
    found = data.load(Config(dataset="imagefolder", data_dir=str(tmp_path / "train")), ALONE)
    assert found.spec.classes == CLASSES
    assert found.held_out.labels.bincount().tolist() == [4, 4]
    assert found.train.labels.bincount().tolist() == [16, 16]


def test_folders_that_cannot_be_trained_on_are_refused_with_the_reason(tmp_path):
    def refusal(root):
        with pytest.raises(DataError) as caught:
            input_folder.find(str(root), ALONE)
        return str(caught.value)

    assert "there is no such folder; see that --data-dir" in refusal(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    assert "holds no images (.jpg" in refusal(tmp_path / "empty")
    make_folder(tmp_path / "lacking")
    (tmp_path / "lacking/val/red").mkdir()
    (tmp_path / "lacking/val/red/x.jpg").write_bytes(picture(1))
    assert "val/red has no train/red" in refusal(tmp_path / "lacking")
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat/x.jpg").write_bytes(picture(1))
    assert "lie in no folder that names their class" in refusal(tmp_path / "flat")
    with pytest.raises(DataError, match="give its path or URI with --data-dir"):
        data.load(Config(dataset="imagefolder"), ALONE)
    (tmp_path / "lacking/dangling.jpg").symlink_to("/nowhere")
    assert refusal(tmp_path / "lacking").startswith(f"cannot list {tmp_path}/lacking/dangling.jpg")
    make_folder(tmp_path / "few", train=4, val=0)
    with pytest.raises(DataError, match="no class has enough for a fifth of it; give more"):
        data.load(Config(dataset="imagefolder", data_dir=str(tmp_path / "few/train")), ALONE)


def test_a_node_whose_files_differ_from_rank_0s_is_named(tmp_path):
    make_folder(tmp_path)
    files = Files(str(tmp_path))
    listed = [name for name in files.sizes() if not name.endswith("003.jpg")]
    with pytest.raises(DataError, match=r"also has 1 images, such as train/green/003.jpg"):
        input_folder._check_same(files, listed)
    with pytest.raises(DataError, match=r"lacks 1 images, such as train/x.jpg"):
        input_folder._check_same(files, [*files.sizes(), "train/x.jpg"])


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
        input_shards.find(str(tmp_path), ALONE, 1)


def test_a_shard_that_was_cut_short_or_packed_is_refused(tmp_path):
    make_shard(tmp_path / "a.tar", range(9))
    content = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(content[:2000])
    with pytest.raises(DataError, match=r"a\.tar cannot be used"):
        input_shards.find(str(tmp_path), ALONE, 1)
    (tmp_path / "a.tar").rename(tmp_path / "a.tar.gz")
    with pytest.raises(DataError, match=r"a\.tar\.gz is compressed"):
        input_shards.find(str(tmp_path), ALONE, 1)


def test_an_index_beside_the_shards_is_used_in_place_of_a_look_through_them(tmp_path, monkeypatch):
    make_shards(tmp_path)
    files = Files(str(tmp_path))
    shards = shard_index.index_shards(files, shard_index.shard_names(files))
    (tmp_path / shard_index.INDEX).write_text(json.dumps(shard_index.as_json(shards)))
    (tmp_path / "classes.txt").write_text("even\nodd\n")
    monkeypatch.setattr(input_shards, "index_shards", None)
    found = input_shards.find(str(tmp_path), ALONE, 1)
    assert found.classes == ("even", "odd")
    assert found.labels.tolist() == [number % 2 for number in range(47)]
    make_shard(tmp_path / "train-1.tar", range(20, 50))
    with pytest.raises(DataError, match=r"not of these shards: train-1.tar is another"):
        input_shards.find(str(tmp_path), ALONE, 1)


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
    shards = shard_index.index_shards(files, shard_index.shard_names(files))
    index = shard_index.as_json(shards)
    index["shards"][0][field] = [value]
    (tmp_path / shard_index.INDEX).write_text(json.dumps(index))
    with pytest.raises(DataError, match=reason):
        input_shards.find(str(tmp_path), ALONE, 1)


def test_a_folder_without_shards_is_told_so(tmp_path):
    make_folder(tmp_path)
    with pytest.raises(DataError, match=r"holds no .tar files; give their folder"):
        input_shards.find(str(tmp_path), ALONE, 1)


def test_more_classes_than_are_named_are_refused(tmp_path):
    make_shards(tmp_path)
    (tmp_path / "classes.txt").write_text("even\n")
    with pytest.raises(DataError, match=r"names 1 classes, and there is a sample of class 1"):
        input_shards.find(str(tmp_path), ALONE, 1)


def test_pictures_of_other_formats_and_colours_are_decoded_too(tmp_path):
    make_folder(tmp_path)
    grey = torch.full((1, 9, 9), 3 * STEP, dtype=torch.uint8)
    (tmp_path / "train/green/003.jpg").write_bytes(encode_jpeg(grey).numpy().tobytes())
    (tmp_path / "train/blue/004.jpg").write_bytes(picture(4, encode_png))
    config = Config(dataset="imagefolder", data_dir=str(tmp_path), image_size=8, workers=0)
    assert sorted(map(number_of, seen_by(config)[0])) == list(range(37))


@pytest.fixture
def broken(tmp_path):
    """Two images to train on and one held out that cannot be decoded."""
    make_folder(tmp_path)
    (tmp_path / "train/blue/002.jpg").write_bytes(picture(2)[:300])
    (tmp_path / "train/green/005.jpg").write_bytes(b"")
    (tmp_path / "val/blue/040.jpg").write_bytes(b"no image")
    return {"dataset": "imagefolder", "data_dir": str(tmp_path), "image_size": 8}


def test_a_broken_image_stops_training_with_its_name_and_what_to_do(broken):
    with pytest.raises(DataError, match=r"train/\w+/00[25].jpg cannot be decoded.*--skip-corrupt"):
        seen_by(Config(**broken, workers=0))


def test_a_few_broken_images_are_left_out_and_named_where_that_was_asked(broken, caplog):
    config = Config(**broken, workers=0, skip_corrupt=3)
    _images, labels = seen_by(config)
    assert labels.count(-100) == 2
    assert len(labels) == 37
    assert "train/blue/002.jpg, which cannot be decoded" in caplog.text
    found = data.load(config, ALONE)
    source = feed.open_feed(config, ALONE, found)
    judged = list(source.held_out(evaluation_shards(10, 0, 1, 4)))
    assert sorted(number_of(image) for batch in judged for image in batch.images) == [
        number for number in range(37, 47) if number != 40
    ]


def test_a_file_that_goes_while_training_is_named(broken, tmp_path):
    config = Config(**broken, workers=1, skip_corrupt=9)
    found = data.load(config, ALONE)
    (tmp_path / "train/green/007.jpg").unlink()
    source = feed.open_feed(config, ALONE, found)
    with pytest.raises(DataError, match=r"cannot read .*train/green/007.jpg: No such file"):
        list(source.train(0, DistributedBatchSampler(37, 0, 1, 8, 0)))
    source.close()


def test_a_worker_that_is_killed_ends_training_with_the_image_that_was_waited_for(tmp_path):
    make_folder(tmp_path)
    config = Config(dataset="imagefolder", data_dir=str(tmp_path), image_size=8, workers=1)
    source = feed.open_feed(config, ALONE, data.load(config, ALONE))
    supply = source.train(0, DistributedBatchSampler(37, 0, 1, 4, 0))
    others = multiprocessing.active_children()
    next(supply)
    (worker,) = set(multiprocessing.active_children()) - {*others}
    worker.kill()
    with pytest.raises(DataError, match=r"was killed.*train/\w+/\d+.jpg came.*--workers"):
        list(supply)
    source.close()


def test_an_error_that_nobody_thought_of_names_the_images_that_it_came_from(tmp_path, monkeypatch):
    make_folder(tmp_path)
    monkeypatch.setattr(decode, "on_cpu", lambda *_: 1 / 0)
    config = Config(dataset="imagefolder", data_dir=str(tmp_path), image_size=8, workers=0)
    with pytest.raises(DataError, match=r"train/\w+/\d+.jpg or one of .* ZeroDivisionError"):
        seen_by(config)


def test_decoding_on_a_gpu_that_is_not_there_is_refused(broken):
    config = Config(**broken, decode="gpu")
    with pytest.raises(ConfigError, match=r"--decode is gpu, and there is no GPU"):
        feed.open_feed(config, ALONE, data.load(config, ALONE))


def test_raw_images_of_any_size_are_what_the_spec_says(settings):
    spec = data.load(Config(**settings), ALONE).spec
    assert (spec.shape, spec.values, spec.any_size) == ((3, 8, 8), (0.0, 255.0), True)
    assert spec.mean == encoded.MEAN


FEEDING = """
import sys
from pathlib import Path
from kfp_pytorch.training import data, feed
from kfp_pytorch.training.config import Config
from kfp_pytorch.training.distributed import ALONE
from kfp_pytorch.training.sampler import DistributedBatchSampler
if __name__ == "__main__":
    config = Config(dataset="imagefolder", data_dir=sys.argv[1], image_size=8, workers=2)
    found = data.load(config, ALONE)
    supply = feed.open_feed(config, ALONE, found).train(0, DistributedBatchSampler(37, 0, 1, 4, 0))
    next(supply)
    print("fed", flush=True)
    sys.stdin.read()
"""


def children(pid):
    """The processes that a process started, and those that these started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except (OSError, ProcessLookupError):
            continue
        if parent == pid:
            found += [int(status.parent.name), *children(int(status.parent.name))]
    return found


@pytest.mark.slow
def test_workers_are_gone_when_their_rank_was_killed(tmp_path):
    make_folder(tmp_path / "data")
    script = tmp_path / "feeding.py"
    script.write_text(FEEDING)
    command = [sys.executable, str(script), str(tmp_path / "data")]
    rank = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert rank.stdout.readline() == b"fed\n"
    started = children(rank.pid)
    assert len(started) >= 3
    os.kill(rank.pid, signal.SIGKILL)
    rank.communicate()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in started):
        assert time.monotonic() < deadline, "a worker outlives its rank"
        time.sleep(0.05)
