from __future__ import annotations

import pytest
import torch
from torch import nn

from kfp_pytorch.training.data.datasets import ImageSpec
from kfp_pytorch.training.errors import CheckpointError, ConfigError
from kfp_pytorch.training.image import models

DIGITS = ImageSpec((1, 8, 8), tuple("0123456789"), (4.9,), (6.0,), (0.0, 16.0))


class HasModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.module = nn.Linear(2, 2)


@pytest.mark.parametrize(
    "prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."]
)
@pytest.mark.parametrize("make", [lambda: nn.Linear(2, 2), HasModule])
def test_the_names_of_wrappers_are_taken_off_only_as_far_as_keys_then_match(prefix, make):
    source, target = make(), make()
    models.load_weights(target, {prefix + key: v for key, v in source.state_dict().items()})
    for name, weight in source.state_dict().items():
        assert torch.equal(target.state_dict()[name], weight)


def test_weights_that_do_not_fit_are_listed_and_none_is_loaded():
    target = nn.Linear(2, 2)
    before = target.weight.clone()
    with pytest.raises(CheckpointError, match="missing bias; unknown scale"):
        models.load_weights(target, {"weight": torch.ones(2, 2), "scale": torch.ones(1)})
    with pytest.raises(CheckpointError, match="size mismatch"):
        models.load_weights(target, {"weight": torch.ones(3, 2), "bias": torch.ones(2)})
    assert torch.equal(target.weight, before)


def test_raw_images_go_in_and_logits_come_out():
    model = models.build("small_cnn", DIGITS, 0).eval()
    assert model(torch.randint(0, 17, (3, 1, 8, 8), dtype=torch.uint8)).shape == (3, 10)


@pytest.mark.parametrize(
    ("name", "size"), [("resnet18", 0), ("mobilenet_v3_small", 32), ("squeezenet1_1", 64)]
)
def test_a_model_of_torchvision_takes_the_data_sets_channels_and_classes(name, size):
    model = models.build(name, DIGITS, size).eval()
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_a_model_that_cannot_take_such_images_says_which_size_to_give():
    with pytest.raises(ConfigError, match="--image-size 224"):
        models.build("alexnet", DIGITS, 0)


@pytest.mark.parametrize(
    ("name", "size", "layer"),
    [
        ("small_cnn", 0, ""),
        ("small_cnn", 2, "8"),
        ("resnet18", 0, "layer2.0.bn1"),
        ("resnet18", 64, ""),
        ("mobilenet_v3_small", 28, "features.9.block.1.1"),
        ("squeezenet1_1", 28, ""),
    ],
)
def test_where_batch_norm_has_one_value_is_where_torch_cannot_train_on_one_image(name, size, layer):
    model = models.build(name, DIGITS, size)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert models.norm_of_one_value(model, DIGITS) == layer
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    one = torch.zeros(1, *DIGITS.shape)
    if layer:
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            model(one)
    else:
        assert model(one).shape == (1, 10)
    assert model(torch.zeros(2, *DIGITS.shape)).shape == (2, 10)


def test_for_an_unknown_model_those_of_similar_names_are_listed():
    with pytest.raises(ConfigError, match=r"'resnet19'; did you mean resnet18 or resnet1.*See tor"):
        models.build("resnet19", DIGITS, 0)
