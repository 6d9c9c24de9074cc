"""The export of a model as ONNX, in a model repository of Triton."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re

import pytest
import torch

from kfp_pytorch.training import export, triton_repository
from kfp_pytorch.training.arguments.config import Config, parse
from kfp_pytorch.training.data import datasets
from kfp_pytorch.training.errors import ConfigError, ExportError
from kfp_pytorch.training.image import models
from kfp_pytorch.training.image.export import write_export
from kfp_pytorch.training.parallel.process_group import ALONE
from kfp_pytorch.training.storage.job_folder import open_folder

# Servers, captum or ONNX start here, which takes long.
pytestmark = pytest.mark.slow

needs_onnx = pytest.mark.skipif(
    importlib.util.find_spec(triton_repository.PACKAGE) is None,
    reason="onnxscript is not installed",
)
IMAGE = {"name": "image", "shape": [-1, 1, 8, 8], "datatype": "FP32"}
SCALAR = {"name": 'a "b"', "shape": [-1], "datatype": "INT64"}
LOGITS = {"name": "logits", "shape": [-1, 10], "datatype": "FP32"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("job")
    digits = datasets.load(Config(), ALONE)
    model = models.build("small_cnn", digits.spec, 0).eval()
    folder = open_folder(str(path))
    said = write_export(folder, model, digits.spec, digits.held_out, "digits-v1")
    return path / "export", model, digits, said, folder


def test_the_configuration_names_tensors_without_the_batch():
    text = triton_repository.config("m", [IMAGE, SCALAR], [LOGITS])
    assert text.splitlines() == [
        'name: "m"',
        'backend: "onnxruntime"',
        "max_batch_size: 64",
        'input { name: "image" data_type: TYPE_FP32 dims: [1, 8, 8] }',
        'input { name: "a \\"b\\"" data_type: TYPE_INT64 dims: [1] reshape { shape: [] } }',
        'output { name: "logits" data_type: TYPE_FP32 dims: [10] }',
        "dynamic_batching { max_queue_delay_microseconds: 1000 }",
    ]


@pytest.mark.parametrize("name", ["a/b", "..", "a b", "x" * 65, "{{a}}"])
def test_a_name_that_no_model_of_triton_has_is_refused_before_training(name):
    with pytest.raises(ConfigError, match=re.escape(repr(name))):
        parse(["--triton-name", name])


def test_an_image_that_makes_no_onnx_is_told_before_training(monkeypatch):
    monkeypatch.setattr(triton_repository, "PACKAGE", "no_such_package")
    with pytest.raises(ConfigError, match=r"install kfp-pytorch\[onnx\]"):
        parse(["--triton-name", "digits"])
    with pytest.raises(ConfigError, match="no use for it"):
        parse(["--model", "lm-tiny", "--triton-name", "digits"])


@needs_onnx
@pytest.mark.slow
def test_the_model_in_the_repository_answers_as_the_one_that_was_trained(exported):
    import onnxruntime

    folder, model, digits, said, _ = exported
    assert said["export"]["model"]["triton"] == "digits-v1"
    repository = folder / "triton" / "digits-v1"
    assert (repository / "config.pbtxt").read_text().startswith('name: "digits-v1"')
    session = onnxruntime.InferenceSession(repository / "1" / "model.onnx")
    assert [each.name for each in session.get_inputs()] == ["image"]
    assert [each.name for each in session.get_outputs()] == ["logits"]
    for size in (1, 2, 7):
        images = digits.held_out.images[:size].float()
        (answer,) = session.run(None, {"image": images.numpy()})
        assert torch.allclose(torch.from_numpy(answer), model(images), atol=1e-4)


@needs_onnx
@pytest.mark.slow
def test_every_file_of_the_repository_is_described_and_checked(exported):
    path, _, _, said, folder = exported
    described = json.loads((path / "model.json").read_bytes())
    files = described["triton_files"]
    made = {str(p.relative_to(path)) for p in (path / "triton").rglob("*") if p.is_file()}
    assert (
        set(files)
        == made
        == {
            "triton/digits-v1/config.pbtxt",
            "triton/digits-v1/1/model.onnx",
        }
    )
    for name, facts in files.items():
        assert facts["sha256"] == hashlib.sha256((path / name).read_bytes()).hexdigest()
    # This project's predictor wants those of its own only.
    assert not set(files) & set(described["files"])
    export.verify(folder, said["export"])
    onnx = path / "triton/digits-v1/1/model.onnx"
    whole = onnx.read_bytes()
    try:
        onnx.write_bytes(whole[:-1] + b"x")
        with pytest.raises(ExportError, match="is not what was written"):
            export.verify(folder, said["export"])
    finally:
        onnx.write_bytes(whole)


@needs_onnx
@pytest.mark.slow
def test_what_onnx_does_not_have_is_said_with_the_way_out(tmp_path):
    class Odd(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.eigvals(x).real

    program = torch.export.export(Odd(), (torch.rand(2, 3, 3),))
    with pytest.raises(ExportError, match="cannot be exported as ONNX") as refused:
        triton_repository.write(tmp_path, "m", program, [IMAGE], [LOGITS])
    assert "leave out the model's name for Triton" in str(refused.value)
