from __future__ import annotations

import pytest
import torch
from torch import nn

from kfp_pytorch.training.data.augment import View, centre_view, random_view, show, show_many
from kfp_pytorch.training.image.export_preprocessing import AnySize


def noise(height, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=generator)


def test_a_crop_depends_on_seed_epoch_and_sample_and_is_within_the_image():
    views = {
        (epoch, index): random_view(60, 70, seed=3, epoch=epoch, index=index)
        for epoch in range(5)
        for index in range(200)
    }
    assert len(set(views.values())) > 900
    for (epoch, index), view in views.items():
        assert view == random_view(60, 70, seed=3, epoch=epoch, index=index)
        assert 0 <= view.top <= 60 - view.height
        assert 0 <= view.left <= 70 - view.width
        assert min(view.height, view.width) > 0
    areas = [view.height * view.width / 4200 for view in views.values()]
    assert min(areas) < 0.12
    assert max(areas) > 0.9
    assert 400 < sum(view.flip for view in views.values()) < 600


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 500), (300, 2)])
def test_images_of_any_shape_have_a_crop(height, width):
    for index in range(20):
        view = random_view(height, width, 0, 0, index)
        assert show(noise(height, width), view, 8).shape == (3, 8, 8)


def test_a_mirrored_view_is_the_mirror_image_of_the_view():
    image = noise(20, 30)
    plain, mirrored = (show(image, View(2, 3, 10, 14, flip), 8) for flip in (False, True))
    assert torch.equal(plain.flip(2), mirrored)


def test_images_resized_together_are_those_resized_one_by_one():
    sizes = [(20, 30), (31, 17), (8, 8), (64, 50), (200, 9)]
    images = [noise(*size, seed) for seed, size in enumerate(sizes)]
    views = [random_view(*size, 0, 1, index) for index, size in enumerate(sizes)]
    expected = torch.stack([show(*each, 16) for each in zip(images, views, strict=True)])
    difference = show_many(images, views, 16).float() - expected.float()
    assert difference.abs().max() <= 1


def test_a_huge_image_does_not_pad_the_others_to_its_size():
    images = [noise(20, 30), noise(1030, 4)]
    views = [centre_view(20, 30), centre_view(1030, 4)]
    expected = torch.stack([show(*each, 16) for each in zip(images, views, strict=True)])
    assert torch.equal(show_many(images, views, 16), expected)


@pytest.mark.parametrize("size", [(40, 50), (64, 21), (1, 1), (5, 200), (32, 32)])
def test_an_export_shows_a_model_what_evaluation_shows_it(size):
    image = noise(*size)
    expected = show(image, centre_view(*size), 32).float()
    shown = AnySize(nn.Identity(), 32)(image[None])[0]
    assert (shown - expected).abs().max() <= 1
