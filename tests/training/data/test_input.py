"""Images in files: found, dealt out, read, decoded, and named where they are broken."""

from __future__ import annotations

import fcntl
import itertools
import multiprocessing
import os
import sys
import termios
import time
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from harness.pictures import CLASSES, STEP, encoded, make_folder, make_shards, number_of, picture
from PIL import Image

from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.data import datasets, decode, device_loader, encoded_images, image_folder
from kfp_pytorch.training.data.sampler import DistributedBatchSampler, evaluation_shards
from kfp_pytorch.training.data.sources import Files
from kfp_pytorch.training.errors import ConfigError, DataError
from kfp_pytorch.training.parallel.process_group import ALONE, World

CPU = torch.device("cpu")
MAKERS = {"imagefolder": make_folder, "shards": make_shards}


@pytest.fixture(params=sorted(MAKERS))
def settings(request, tmp_path):
    root = MAKERS[request.param](tmp_path)
    return {"dataset": request.param, "data_dir": str(root), "image_size": 8, "shuffle_block": 4}


def seen_by(config, rank=0, ranks=1, epoch=0, start=0, batch=4, steps=None):
    """The images, as pixels, that a rank trains on in the rest of an epoch, and their labels."""
    found = datasets.load(config, ALONE)
    count = len(found.train.labels)
    sampler = DistributedBatchSampler(count, rank, ranks, batch, config.seed, found.block)
    sampler.set_epoch(epoch, start)
    source = device_loader.open_device_loader(config, World(rank, rank, ranks, CPU), found)
    images, labels = [], []
    for part, samples in itertools.islice(source.train(epoch, sampler), steps):
        assert len(samples.labels) == len(part.indices)
        images += samples.images[: part.count]
        labels += samples.labels[: part.count].tolist()
    source.close()
    return images, labels


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_image_occurs_once_per_epoch_with_its_class_over_all_ranks(settings, ranks):
    config = Config(**settings, workers=0)
    parts = [seen_by(config, rank, ranks) for rank in range(ranks)]
    numbers = [number_of(image) for images, _ in parts for image in images]
    labels = [label for _, labels in parts for label in labels]
    assert sorted(numbers) == list(range(37))
    assert labels == [number % 2 for number in numbers]


def test_worker_processes_give_the_same_pixels_in_the_same_order_as_one_process(settings):
    expected, _ = seen_by(Config(**settings, workers=0), rank=1, ranks=2, epoch=2)
    found, _ = seen_by(Config(**settings, workers=2), rank=1, ranks=2, epoch=2)
    assert torch.equal(torch.stack(found), torch.stack(expected))


def test_an_epoch_resumes_at_its_step_with_the_same_pixels(settings):
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


def test_held_out_images_are_each_evaluated_once_over_uneven_ranks(settings):
    config = Config(**settings, workers=0)
    found = datasets.load(config, ALONE)
    numbers = []
    for rank in range(3):
        source = device_loader.open_device_loader(config, World(rank, rank, 3, CPU), found)
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


def test_a_limited_number_of_images_is_taken_from_all_classes(settings):
    found = datasets.load(Config(**settings, max_train_samples=8), ALONE)
    assert sorted(found.train.labels.bincount().tolist()) in ([3, 5], [4, 4])
    assert len({found.train.name(row) for row in range(8)}) == 8
    whole = datasets.load(Config(**settings, max_train_samples=99), ALONE)
    assert len(whole.train.labels) == 37


def test_without_held_out_files_a_fixed_share_of_each_class_is_held_out(tmp_path):
    make_folder(tmp_path, train=40, val=0)
    found = datasets.load(Config(dataset="imagefolder", data_dir=str(tmp_path / "train")), ALONE)
    assert found.spec.classes == CLASSES
    assert found.held_out.labels.bincount().tolist() == [4, 4]
    assert found.train.labels.bincount().tolist() == [16, 16]


def test_folders_that_cannot_be_trained_on_are_refused_with_the_reason(tmp_path):
    def refusal(root):
        with pytest.raises(DataError) as caught:
            image_folder.find(str(root), ALONE)
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
    assert "are in no folder that names their class" in refusal(tmp_path / "flat")
    make_folder(tmp_path / "halved")
    (tmp_path / "halved/val").rename(tmp_path / "halved/test")
    assert "no val/ beside it (there is test/, train/); name the" in refusal(tmp_path / "halved")
    make_folder(tmp_path / "above/deep")
    with pytest.raises(DataError, match="has one class alone, 'deep', and there is nothing"):
        datasets.load(Config(dataset="imagefolder", data_dir=str(tmp_path / "above")), ALONE)
    with pytest.raises(ConfigError, match="give its path or URI with --data-dir"):
        datasets.load(Config(dataset="imagefolder"), ALONE)
    (tmp_path / "lacking/dangling.jpg").symlink_to("/nowhere")
    assert refusal(tmp_path / "lacking").startswith(f"cannot list {tmp_path}/lacking/dangling.jpg")
    make_folder(tmp_path / "few", train=4, val=0)
    with pytest.raises(DataError, match="no class has enough for a fifth of it; give more"):
        datasets.load(Config(dataset="imagefolder", data_dir=str(tmp_path / "few/train")), ALONE)


@pytest.mark.parametrize("names", [("Train", "Val"), ("training", "testing")])
def test_parts_of_the_data_under_other_names_are_no_classes(tmp_path, names):
    make_folder(tmp_path)
    for found, name in zip(("train", "val"), names, strict=True):
        (tmp_path / found).rename(tmp_path / name)
    with pytest.raises(DataError, match=f"classes below {names[0]}/ and no val/ beside it"):
        image_folder.find(str(tmp_path), ALONE)


def test_a_class_without_images_or_with_other_formats_is_refused(tmp_path, caplog):
    make_folder(tmp_path)
    (tmp_path / "train/red").mkdir()
    with pytest.raises(DataError, match=r"train/red is empty, and its class has no images"):
        image_folder.find(str(tmp_path), ALONE)
    (tmp_path / "train/red/1.BMP").write_bytes(b"BM")
    with pytest.raises(DataError, match=r"train/red holds pictures of kinds .*; convert them"):
        image_folder.find(str(tmp_path), ALONE)
    (tmp_path / "train/red/2.jfif").write_bytes(picture(1))
    found = image_folder.find(str(tmp_path), ALONE)
    assert found.classes == ("blue", "green", "red")
    assert "passed over 1 pictures of kinds" in caplog.text
    assert "train/red/1.BMP" in caplog.text


def test_hidden_files_are_no_images_and_their_folders_no_classes(tmp_path):
    make_folder(tmp_path / "train", train=8, val=0)
    root = (tmp_path / "train").rename(tmp_path / "root") / "train"
    for name in (".ipynb_checkpoints/x.jpg", "blue/.x/x.jpg", "blue/._x.jpg", "__MACOSX/x.jpg"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(picture(1))
    store = fsspec.filesystem("memory")
    store.put(f"{root}/", f"/{tmp_path.name}/hidden/", recursive=True)
    for uri in (str(root), f"memory://{tmp_path.name}/hidden"):
        found = image_folder.find(uri, ALONE)
        assert found.classes == CLASSES
        assert len(found.labels) == 8


def test_a_class_whose_folder_is_not_named_in_utf8_has_a_name_that_can_be_sent(tmp_path):
    for name in ("caf\udce9", "tea"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jpg").write_bytes(picture(1))
    found = image_folder.find(str(tmp_path), ALONE)
    assert found.classes == (r"caf\udce9", "tea")
    assert found.source.read([0]) == [picture(1)]


def test_a_pipe_is_no_image_and_is_not_waited_for(tmp_path):
    make_folder(tmp_path)
    os.mkfifo(tmp_path / "train" / CLASSES[0] / "pipe.jpg")
    assert not any("pipe" in name for name in Files(str(tmp_path)).sizes())


def test_a_class_may_be_called_train(tmp_path):
    for name in ("bus/1.jpg", "train/1.jpg"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(picture(1))
    assert image_folder.find(str(tmp_path), ALONE).classes == ("bus", "train")


def test_a_node_whose_files_differ_from_rank_0s_is_named(tmp_path):
    make_folder(tmp_path)
    files = Files(str(tmp_path))
    listed = [name for name in files.sizes() if not name.endswith("003.jpg")]
    with pytest.raises(DataError, match=r"also has 1 images, such as train/green/003.jpg"):
        image_folder._check_same(files, listed)
    with pytest.raises(DataError, match=r"lacks 1 images, such as train/x.jpg"):
        image_folder._check_same(files, [*files.sizes(), "train/x.jpg"])


def test_pictures_of_other_formats_and_colours_are_decoded_too(tmp_path):
    make_folder(tmp_path)
    grey = torch.full((1, 9, 9), 3 * STEP, dtype=torch.uint8)
    (tmp_path / "train/green/003.jpg").write_bytes(encoded(grey))
    (tmp_path / "train/blue/004.jpg").write_bytes(picture(4, "PNG"))
    for number, mode, kind in ((5, "CMYK", "JPEG"), (6, "P", "PNG"), (7, "RGBA", "WEBP")):
        image = Image.new("RGB", (9, 9), (number * STEP,) * 3).convert(mode)
        image.save(tmp_path / f"train/{CLASSES[number % 2]}/{number:03}.jpg", kind)
    # Its low byte is not its high one.
    deep = Image.fromarray(np.full((9, 9), 8 * STEP * 256 + 199, dtype=np.uint16))
    deep.save(tmp_path / "train/blue/008.jpg", "PNG")
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
    found = datasets.load(config, ALONE)
    source = device_loader.open_device_loader(config, ALONE, found)
    judged = list(source.held_out(evaluation_shards(10, 0, 1, 4)))
    assert sorted(number_of(image) for batch in judged for image in batch.images) == [
        number for number in range(37, 47) if number != 40
    ]


def test_a_file_that_is_deleted_during_training_is_named(broken, tmp_path):
    config = Config(**broken, workers=1, skip_corrupt=9)
    found = datasets.load(config, ALONE)
    (tmp_path / "train/green/007.jpg").unlink()
    source = device_loader.open_device_loader(config, ALONE, found)
    with pytest.raises(DataError, match=r"cannot read .*train/green/007.jpg: No such file"):
        list(source.train(0, DistributedBatchSampler(37, 0, 1, 8, 0)))
    source.close()


def unread(pipe: int) -> int:
    """The bytes that a pipe holds."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_a_worker_that_is_killed_ends_training_with_the_image_that_was_waited_for(tmp_path):
    make_folder(tmp_path)
    config = Config(dataset="imagefolder", data_dir=str(tmp_path), image_size=8, workers=1)
    found = datasets.load(config, ALONE)
    batches = list(DistributedBatchSampler(37, 0, 1, 4, 0))
    # Killed where it waits for the rest of an image, a worker holds nothing that others want.
    image = Path(found.train.name(int(batches[1].indices[0])))
    image.unlink()
    os.mkfifo(image)
    pipe = os.open(image, os.O_RDWR)
    os.write(pipe, b"the beginning")
    source = device_loader.open_device_loader(config, ALONE, found)
    supply = source.train(0, batches)
    others = multiprocessing.active_children()
    next(supply)
    (worker,) = set(multiprocessing.active_children()) - {*others}
    while unread(pipe):
        assert worker.is_alive()
        time.sleep(0.01)
    worker.kill()
    with pytest.raises(DataError, match=rf"was killed.*{image} came.*--workers"):
        list(supply)
    os.close(pipe)
    source.close()


def test_workers_that_cannot_be_started_are_an_error(tmp_path):
    class Unstartable:
        def __iter__(self):
            raise EOFError("unexpected EOF")

    make_folder(tmp_path)
    config = Config(dataset="imagefolder", data_dir=str(tmp_path), image_size=8, workers=0)
    source = device_loader.open_device_loader(config, ALONE, datasets.load(config, ALONE))
    source._workers._loader = Unstartable()
    with pytest.raises(DataError, match=r"cannot be started \(EOFError: unexpected EOF\); give"):
        next(source.train(0, DistributedBatchSampler(37, 0, 1, 4, 0)))


def test_an_unexpected_error_names_the_images_that_were_read(tmp_path, monkeypatch):
    make_folder(tmp_path)
    monkeypatch.setattr(decode, "on_cpu", lambda *_: 1 / 0)
    config = Config(dataset="imagefolder", data_dir=str(tmp_path), image_size=8, workers=0)
    with pytest.raises(DataError, match=r"train/\w+/\d+.jpg or one of .* ZeroDivisionError"):
        seen_by(config)


def test_decoding_on_a_gpu_that_is_not_there_is_refused(broken):
    config = Config(**broken, decode="gpu")
    with pytest.raises(ConfigError, match=r"--decode is gpu, and there is no GPU"):
        device_loader.open_device_loader(config, ALONE, datasets.load(config, ALONE))


def test_raw_images_of_any_size_are_what_the_spec_says(settings):
    spec = datasets.load(Config(**settings), ALONE).spec
    assert (spec.shape, spec.values, spec.any_size) == ((3, 8, 8), (0.0, 255.0), True)
    assert spec.mean == encoded_images.MEAN
