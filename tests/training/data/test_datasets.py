from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
import torch

from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.data import datasets
from kfp_pytorch.training.errors import DataError
from kfp_pytorch.training.parallel.process_group import ALONE


def idx(path, array):
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


@pytest.fixture
def fashion(tmp_path):
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for name, count in (("train", 40), ("t10k", 20)):
        idx(raw / f"{name}-images-idx3-ubyte", draw.integers(0, 256, (count, 28, 28)))
        idx(raw / f"{name}-labels-idx1-ubyte", np.arange(count) % 10)
    return tmp_path


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    bunch = load_digits()
    digits = datasets.load(Config(dataset="digits"), ALONE)
    images = torch.cat([digits.train.images, digits.held_out.images]).flatten(1)
    labels = torch.cat([digits.train.labels, digits.held_out.labels])
    ours = sorted(map(tuple, torch.column_stack([images, labels]).int().tolist()))
    theirs = sorted(map(tuple, np.column_stack([bunch.data, bunch.target]).astype(int).tolist()))
    assert ours == theirs
    assert digits.spec.values == (0.0, 16.0)


def test_the_same_fifth_of_each_class_is_held_out_for_every_seed():
    one, two = (datasets.load(Config(seed=seed), ALONE) for seed in (0, 1))
    assert torch.equal(one.held_out.images, two.held_out.images)
    every = torch.cat([one.train.labels, one.held_out.labels])
    for label in range(10):
        share = (one.held_out.labels == label).sum() / (every == label).sum()
        assert abs(share - datasets.HELD_OUT_SHARE) < 0.01


def test_fashion_mnist_is_read_from_a_folder_that_is_there(fashion):
    found = datasets.load(Config(dataset="fashion-mnist", data_dir=str(fashion)), ALONE)
    assert found.spec.shape == (1, 28, 28)
    assert found.spec.classes[9] == "Ankle boot"
    assert (len(found.train.labels), len(found.held_out.labels)) == (40, 20)
    assert found.train.images.dtype == torch.uint8


def test_a_missing_data_set_is_an_error_with_its_path_and_what_to_do(tmp_path):
    config = Config(dataset="fashion-mnist", data_dir=str(tmp_path))
    with pytest.raises(DataError, match=r"FashionMNIST/raw.*--data-dir.*--download"):
        datasets.load(config, ALONE)


def test_a_damaged_data_set_is_an_error_of_the_data_set(fashion):
    path = fashion / "FashionMNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(gzip.compress(path.read_bytes()))
    config = Config(dataset="fashion-mnist", data_dir=str(fashion))
    with pytest.raises(DataError, match="fashion-mnist"):
        datasets.load(config, ALONE)
