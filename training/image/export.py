"""The export of an image classifier: raw images in, logits out, any batch size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from kfp_pytorch.training.data.datasets import ImageSpec, Samples
from kfp_pytorch.training.export import description, publish
from kfp_pytorch.training.image.export_preprocessing import AnySize
from kfp_pytorch.training.storage.job_folder import Folder

# One of each class for a few classes; the termination message has room for no more.
MAX_SAMPLES = 16
_THUMBNAIL = 8


def write_export(
    folder: Folder, model: nn.Module, spec: ImageSpec, held_out: Samples, triton_name: str = ""
) -> dict[str, Any]:
    """Exports a model on the CPU; returns `export` and `samples` of the termination message.

    `triton_name`: see `training.export.publish`.
    """
    return publish(
        folder,
        _trace(model, spec),
        lambda program: _samples(program, held_out, spec),
        _short_form(spec),
        _preprocessing(spec, getattr(model, "image_size", 0)),
        triton_name,
    )


def _trace(model: nn.Module, spec: ImageSpec) -> torch.export.ExportedProgram:
    """The program of a model, with a crop and resize before it if images have any size."""
    _channels, height, width = spec.shape
    # Without min=1 the compiler treats a batch of one as special.
    sizes = {0: Dim("batch", min=1)}
    if spec.any_size:
        model = AnySize(model, height).eval()
        sizes |= {2: Dim("height", min=1), 3: Dim("width", min=1)}
        # An example that is not square, and not of the final size: those would be special.
        height, width = height + 8, width + 24
    example = torch.zeros(2, spec.shape[0], height, width)
    with torch.no_grad():
        return torch.export.export(model, (example,), dynamic_shapes={"image": sizes})


def _samples(program: nn.Module, held_out: Samples, spec: ImageSpec) -> list[dict[str, Any]]:
    """Held-out images with their classes, and the predictions of the exported program."""
    chosen = _one_of_each_class(held_out.labels, len(spec.classes))
    images = held_out.take(chosen, torch.device("cpu")).images
    if spec.any_size:
        # Thumbnails: the termination message has two kilobytes.
        images = functional.interpolate(images.float(), (_THUMBNAIL,) * 2, mode="area").byte()
    with torch.no_grad():
        predictions = program(images.float()).argmax(dim=1)
    return [
        {"instance": image.tolist(), "prediction": int(prediction), "label": int(label)}
        for image, prediction, label in zip(
            images, predictions, held_out.labels[chosen], strict=True
        )
    ]


def _one_of_each_class(labels: Tensor, classes: int) -> Tensor:
    firsts = [(labels == label).nonzero().flatten()[:1] for label in range(classes)]
    return torch.cat(firsts)[:MAX_SAMPLES]


def _short_form(spec: ImageSpec) -> dict[str, Any]:
    shape = [-1, spec.shape[0], -1, -1] if spec.any_size else [-1, *spec.shape]
    return description(
        [{"name": "image", "shape": shape, "datatype": "FP32"}],
        [{"name": "logits", "shape": [-1, len(spec.classes)], "datatype": "FP32"}],
        list(spec.classes),
    )


def _preprocessing(spec: ImageSpec, image_size: int) -> dict[str, Any]:
    """What the program does to an image, in this order, for people and other runtimes."""
    if spec.any_size:
        image_size = spec.shape[-1]
    return {
        "in_program": True,
        "crop": "the middle square, 7/8 of the shorter side" if spec.any_size else None,
        "values": list(spec.values),
        "mean": list(spec.mean),
        "std": list(spec.std),
        "resize": [image_size, image_size] if image_size else None,
    }
