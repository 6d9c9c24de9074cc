"""A whole training from image files."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from harness.in_process import NEVER, StopAt, learned
from harness.pictures import encoded

from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.errors import CheckpointError, Stopped
from kfp_pytorch.training.image import loop
from kfp_pytorch.training.lifecycle import Start
from kfp_pytorch.training.parallel.process_group import ALONE


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    draw = torch.Generator().manual_seed(0)
    for number in range(50):
        label = number % 2
        tint = torch.tensor([200.0, 60, 60] if label else [60.0, 60, 200])[:, None, None]
        image = tint + torch.rand(3, 30 + number % 9, 40, generator=draw) * 40
        path = root / ("val" if number >= 40 else "train") / ("blue", "red")[label]
        path.mkdir(parents=True, exist_ok=True)
        (path / f"{number}.jpg").write_bytes(encoded(image.byte()))
    return root


def run(folder, output, looks=NEVER):
    torch.set_num_threads(1)
    config = Config(
        dataset="imagefolder",
        data_dir=str(folder),
        image_size=16,
        output=str(output),
        epochs=2,
        batch_size=8,
        workers=0,
        log_every=2,
    )
    return loop.train(Start(config, ALONE, StopAt(looks)))


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    output = tmp_path_factory.mktemp("whole")
    return output, run(folder, output)


def test_a_run_stopped_in_an_epoch_and_resumed_is_bit_for_bit_one_that_was_not(
    folder, whole, tmp_path
):
    with pytest.raises(Stopped):
        run(folder, tmp_path, looks=3)
    resumed = run(folder, tmp_path)
    assert resumed["curves"] == whole[1]["curves"]
    assert learned(resumed["metrics"]) == learned(whole[1]["metrics"])


@pytest.mark.parametrize(
    ("place", "words"),
    [("red/50.jpg", "train_samples 40, and this run has 41"), ("green/50.jpg", "classes 2, .* 3")],
)
def test_a_folder_that_changed_since_its_checkpoint_is_refused_with_the_reason(
    folder, tmp_path, place, words
):
    images = shutil.copytree(folder, tmp_path / "images")
    with pytest.raises(Stopped):
        run(images, tmp_path / "job", looks=1)
    known = images / "train" / "red" / "1.jpg"
    (images / "train" / place).parent.mkdir(exist_ok=True)
    shutil.copy(known, images / "train" / place)
    if "green" in place:
        known.unlink()
    with pytest.raises(CheckpointError, match=f"{words}; use another folder.*--resume never"):
        run(images, tmp_path / "job")


def test_a_class_under_another_name_since_its_checkpoint_is_refused(folder, tmp_path):
    images = shutil.copytree(folder, tmp_path / "images")
    with pytest.raises(Stopped):
        run(images, tmp_path / "job", looks=1)
    for part in ("train", "val"):
        (images / part / "blue").rename(images / part / "sky")
    with pytest.raises(CheckpointError, match="class_names 'blue, red', and this run has 'red, sk"):
        run(images, tmp_path / "job")


def test_the_export_takes_raw_images_of_any_size_and_says_how_it_prepares_them(whole):
    output, result = whole
    assert result["metrics"]["accuracy"] == 1
    program = torch.export.load(output / "export" / "model.pt2").module()
    for height, width in ((16, 16), (37, 91), (200, 90), (3, 1)):
        red = torch.tensor([220.0, 80, 80])[:, None, None].expand(2, 3, height, width)
        assert program(red).argmax(dim=1).tolist() == [1, 1]
    about = json.loads((output / "export" / "model.json").read_text())
    assert about["inputs"][0]["shape"] == [-1, 3, -1, -1]
    assert about["preprocessing"]["in_program"] is True
    assert about["preprocessing"]["resize"] == [16, 16]
    assert "7/8" in about["preprocessing"]["crop"]
    for sample in json.loads((output / "export" / "samples.json").read_text()):
        image = torch.tensor(sample["instance"])[None].float()
        assert program(image).argmax() == sample["prediction"]
