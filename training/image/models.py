"""Models by name: a small CNN, or any classification model of torchvision."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kfp_pytorch.training.data.datasets import ImageSpec
from kfp_pytorch.training.errors import CheckpointError, ConfigError, some

SMALL_CNN = "small_cnn"
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# Prefixes of DDP and torch.compile before the names of weights.
_WRAPPERS = ("module.", "_orig_mod.")


class Classifier(nn.Module):
    """A network with its preprocessing: raw images in, logits out.

    The preprocessing is a part of the model, so a server cannot do it differently.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, images: ImageSpec, image_size: int) -> None:
        super().__init__()
        self.network = network
        self.image_size = image_size
        self.register_buffer("mean", torch.tensor(images.mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(images.std).view(-1, 1, 1), persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        """Logits of a batch of images in the data set's own values."""
        image = (image.float() - self.mean) / self.std
        size = (self.image_size, self.image_size)
        if self.image_size and image.shape[-2:] != size:
            image = functional.interpolate(image, size=size, mode="bilinear", antialias=False)
        logits: Tensor = self.network(image)
        return logits


def build(name: str, images: ImageSpec, image_size: int) -> Classifier:
    """Makes a model with fresh weights.

    `name`: `small_cnn`, or one of torchvision. `image_size`: the pixels to which it resizes; 0 for
    not at all. Raises ConfigError: no such model, or it cannot take images of this size.
    """
    classes = len(images.classes)
    if name == SMALL_CNN:
        network: nn.Module = small_cnn(images.shape[0], classes, image_size or images.shape[1])
    else:
        network = _from_torchvision(name, images.shape[0], classes, image_size)
    model = Classifier(network, images, image_size)
    _check_image_size(model, name, images, image_size)
    return model


def small_cnn(channels: int, classes: int, size: int) -> nn.Sequential:
    """A network of some 150,000 weights that learns small images in seconds on a CPU."""
    # Images of 8 pixels are not halved; for those of 28 that saves three quarters of the time.
    early = [nn.MaxPool2d(2)] if size >= 16 else []
    return nn.Sequential(
        *_convolution(channels, 16),
        *early,
        *_convolution(16, 32),
        nn.MaxPool2d(2),
        *_convolution(32, 64),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Dropout(0.4),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


def norm_of_one_value(model: Classifier, images: ImageSpec) -> str:
    """Finds where batch norm has one value a channel of one image, and so no variance to train on.

    Returns the name of the first such layer, or empty. `model`: on the CPU; left in training mode.
    """
    found: list[str] = []

    def look(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(_layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if inputs[0].numel() == inputs[0].shape[1]:
                found.append(name)

        return hook

    norms = [(n, m) for n, m in model.network.named_modules() if isinstance(m, _BATCH_NORMS)]
    hooks = [norm.register_forward_pre_hook(look(name)) for name, norm in norms]
    _forward_one(model, images)
    for handle in hooks:
        handle.remove()
    return found[0] if found else ""


def load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Loads weights strictly, without prefixes of DDP and torch.compile. Raises CheckpointError."""
    expected = set(model.state_dict())
    bare = weights
    while set(bare) != expected:
        prefix = next((p for p in _WRAPPERS if bare and all(k.startswith(p) for k in bare)), None)
        if prefix is None:
            bare = weights
            break
        bare = {key.removeprefix(prefix): value for key, value in bare.items()}
    missing, extra = sorted(expected - set(bare)), sorted(set(bare) - expected)
    if missing or extra:
        raise CheckpointError(
            f"the weights do not fit the model: missing {some(missing)}; unknown {some(extra)}"
        )
    try:
        model.load_state_dict(bare, strict=True)
    except RuntimeError as error:
        raise CheckpointError(f"the weights do not fit the model: {error}") from error


def _convolution(inputs: int, outputs: int) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]


def _from_torchvision(name: str, channels: int, classes: int, image_size: int) -> nn.Module:
    # torchvision takes seconds to import, and small_cnn does not need it.
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        near = " or ".join(difflib.get_close_matches(name, known, n=3))
        hint = f"did you mean {near}? See" if near else "see"
        raise ConfigError(f"--model is {name!r}; {hint} torchvision.models, or give {SMALL_CNN}")
    options: dict[str, Any] = {"weights": None, "num_classes": classes}
    if name.startswith("vit_") and image_size:
        options["image_size"] = image_size
    if name in ("googlenet", "inception_v3"):
        # Their auxiliary heads need large images, and change the output in training.
        options |= {"aux_logits": False, "init_weights": True}
    network: nn.Module = models.get_model(name, **options)
    if channels != 3:
        _adapt_channels(network, channels)
    return network


def _adapt_channels(network: nn.Module, channels: int) -> None:
    for path, module in network.named_modules():
        if isinstance(module, nn.Conv2d) and module.in_channels == 3:
            fresh = nn.Conv2d(
                channels,
                module.out_channels,
                kernel_size=module.kernel_size,  # type: ignore[arg-type]
                stride=module.stride,  # type: ignore[arg-type]
                padding=module.padding,  # type: ignore[arg-type]
                bias=module.bias is not None,
            )
            parent, _, attribute = path.rpartition(".")
            setattr(network.get_submodule(parent), attribute, fresh)
            return
    raise ConfigError(f"the model has no convolution of 3 channels to adapt to {channels}")


def _check_image_size(model: nn.Module, name: str, images: ImageSpec, image_size: int) -> None:
    try:
        _forward_one(model, images)
    except Exception as error:
        size = image_size or "x".join(map(str, images.shape[1:]))
        raise ConfigError(
            f"--model {name} cannot take images of size {size}: {error}; "
            "give a size that it takes, such as --image-size 224"
        ) from error


@torch.no_grad()
def _forward_one(model: nn.Module, images: ImageSpec) -> None:
    """Computes one image in evaluation mode, which changes nothing in the model."""
    model.eval()
    model(torch.zeros(1, *images.shape))
    model.train()
