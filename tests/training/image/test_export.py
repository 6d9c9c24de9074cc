from __future__ import annotations

import hashlib
import json

import pytest
import torch

from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.data import datasets
from kfp_pytorch.training.image import models
from kfp_pytorch.training.image.export import write_export
from kfp_pytorch.training.parallel.process_group import ALONE
from kfp_pytorch.training.storage.job_folder import open_folder


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("job")
    digits = datasets.load(Config(), ALONE)
    model = models.build("small_cnn", digits.spec, 0).eval()
    said = write_export(open_folder(str(path)), model, digits.spec, digits.held_out)
    return path / "export", model, digits, said


def test_the_program_takes_raw_images_in_batches_of_any_size(exported):
    folder, model, digits, _said = exported
    program = torch.export.load(folder / "model.pt2").module()
    for size in (1, 2, 7):
        images = digits.held_out.images[:size].float()
        assert torch.allclose(program(images), model(images), atol=1e-5)


def test_model_json_describes_the_program_and_every_file(exported):
    folder, _model, digits, said = exported
    content = (folder / "model.json").read_bytes()
    model = json.loads(content)
    assert said["export"]["sha256"] == hashlib.sha256(content).hexdigest()
    assert said["export"]["model"]["classes"] == list("0123456789")
    assert model["format"] == "kfp-pytorch"
    assert model["inputs"] == [{"name": "image", "shape": [-1, 1, 8, 8], "datatype": "FP32"}]
    assert model["outputs"] == [{"name": "logits", "shape": [-1, 10], "datatype": "FP32"}]
    assert model["preprocessing"]["in_program"] is True
    assert model["preprocessing"]["mean"] == pytest.approx(list(digits.spec.mean))
    assert model["versions"]["torch"] == torch.__version__
    assert set(model["files"]) == {path.name for path in folder.iterdir()} - {"model.json"}
    for name, facts in model["files"].items():
        assert facts["sha256"] == hashlib.sha256((folder / name).read_bytes()).hexdigest()


def test_samples_are_held_out_images_with_the_programs_own_answers(exported):
    folder, _model, digits, said = exported
    samples = json.loads((folder / "samples.json").read_text())
    assert samples == said["samples"]
    program = torch.export.load(folder / "model.pt2").module()
    labels = {
        tuple(image.flatten().tolist()): int(label)
        for image, label in zip(digits.held_out.images, digits.held_out.labels, strict=True)
    }
    for sample in samples:
        image = torch.tensor(sample["instance"])
        assert labels[tuple(image.flatten().tolist())] == sample["label"]
        assert program(image[None].float()).argmax() == sample["prediction"]
