"""The step `kserve_predict` asks a predictor, in each protocol that it speaks."""

from __future__ import annotations

import base64
import io
import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.predict_step import Step
from PIL import Image

from kfp_pytorch.launcher.kserve.predict.exchange import NoAnswer, WrongAnswers
from kfp_pytorch.launcher.kserve.predict.protocols import v2_grpc

# `import kserve` parses sys.argv.
_given, sys.argv = sys.argv, sys.argv[:1]
from kserve.protocol.grpc import grpc_predict_v2_pb2 as theirs  # noqa: E402

# Servers, captum or ONNX start here, which takes long.
pytestmark = pytest.mark.slow

sys.argv = _given

QUARTERS = (3, 0, 1, 2)
# A bright quarter of an image is its class.
IMAGES = [
    np.kron(np.eye(4)[q].reshape(1, 2, 2), np.full((2, 2), 16)).astype(int).tolist()
    for q in QUARTERS
]
SAMPLES = [{"instance": i, "prediction": q} for i, q in zip(IMAGES, QUARTERS, strict=True)]
TENSOR = {
    "name": "image",
    "datatype": "FP32",
    "shape": [2, 1, 4, 4],
    "data": np.ravel(IMAGES[:2]).tolist(),
}
LOGITS = [[0, 0, 0, 10.0], [10.0, 0, 0, 0]]


class PredictStep(Step):
    """Asks the predictor with the description of its model."""

    def __call__(self, samples: Any = None, **inputs: Any) -> Any:
        content = {
            "model": {"inputs": [{"name": "image", "shape": [-1, 1, 4, 4], "datatype": "FP32"}]},
            "samples": samples or [],
        }
        self.model.write_text(json.dumps(content))
        return super().__call__(None, **inputs)


@pytest.fixture(params=["v1", "v2", "grpc"])
def protocol(request: Any) -> str:
    return str(request.param)


@pytest.fixture
def ask(server: Any, protocol: str, tmp_path: Path) -> PredictStep:
    port = server.grpc_port if protocol == "grpc" else server.port
    return PredictStep(f"http://127.0.0.1:{port}/v1/models/digits:predict", tmp_path)


def test_held_out_samples_are_answered_alike_in_every_protocol(
    ask: PredictStep, protocol: str
) -> None:
    outputs = ask(SAMPLES, protocol=protocol, batch_size=3, repeat=3, concurrency=2)
    answer = json.loads(outputs.sample_prediction)
    assert outputs.correct == 1.0
    assert (answer["class"], answer["label"]) == (3, "three")
    assert answer["score"] == pytest.approx(1.0, abs=1e-3)
    assert ask.latencies["requests"] == 6
    assert 0 < ask.latencies["latency_p50"] <= ask.latencies["latency_max"]
    assert "<rect" in ask.report


def test_an_image_may_be_a_file(ask: PredictStep, protocol: str) -> None:
    content = io.BytesIO()
    pixels = np.kron(np.eye(4)[1].reshape(2, 2), np.full((2, 2), 255)).astype(np.uint8)
    Image.fromarray(pixels).save(content, "PNG")
    file = {"b64": base64.b64encode(content.getvalue()).decode()}
    ask(protocol=protocol, requests=[{"instance": file, "prediction": 1}])


def test_a_wrong_answer_fails_in_every_protocol(ask: PredictStep, protocol: str) -> None:
    wrong = [{"instance": IMAGES[0], "prediction": 2}]
    message = ask.fails(WrongAnswers, protocol=protocol, requests=wrong)
    assert "Request 0: expected 2, got" in message


def test_a_refusal_has_the_predictors_words(ask: PredictStep, protocol: str) -> None:
    ragged = [{"instance": [[1, 2]], "prediction": 2}]
    message = ask.fails(NoAnswer, protocol=protocol, requests=ragged)
    assert "refused the request" in message
    assert "shape" in message or "expected 4 elements" in message


def test_another_name_is_waited_for_and_told_of(ask: PredictStep, protocol: str) -> None:
    given = {"protocol": protocol, "model_name": "other", "ready_timeout": 0}
    url = ask.url.removesuffix("/v1/models/digits:predict")
    message = ask.fails(NoAnswer, SAMPLES, url=url, **given)
    assert "did not answer within 0 s" in message
    assert "Model with name other does not exist." in message


@pytest.mark.parametrize("protocol", ["v2", "grpc"], indirect=True)
@pytest.mark.parametrize(
    "expected", [{"logits": LOGITS}, [3, 0]], ids=["values", "place of the highest"]
)
def test_the_models_own_output_is_compared(ask: PredictStep, protocol: str, expected: Any) -> None:
    own = {"inputs": [TENSOR], "outputs": [{"name": "logits"}], "expected": expected}
    outputs = ask(protocol=protocol, requests=[own])
    assert json.loads(outputs.sample_prediction) == {"logits": LOGITS}


@pytest.mark.parametrize("protocol", ["v2", "grpc"], indirect=True)
def test_the_best_classes_are_asked_for_by_a_parameter(ask: PredictStep, protocol: str) -> None:
    best = {"inputs": [TENSOR], "parameters": {"top_k": 2}, "outputs": [{"name": "class"}]}
    answer = json.loads(ask(protocol=protocol, requests=[best]).sample_prediction)
    assert [row[0] for row in answer["class"]] == [3, 0]


BODY = {
    "id": "7",
    "parameters": {"top_k": 2, "fast": True, "word": "a"},
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]}],
    "outputs": [{"name": "class"}],
}


def test_kserves_own_messages_read_what_grpc_sends() -> None:
    read = theirs.ModelInferRequest()
    read.ParseFromString(v2_grpc.build(BODY, "digits").body)
    assert read.model_name == "digits"
    assert read.id == "7"
    assert read.parameters["top_k"].int64_param == 2
    assert read.parameters["fast"].bool_param is True
    assert read.parameters["word"].string_param == "a"
    assert list(read.inputs[0].shape) == [2]
    assert read.raw_input_contents == [struct.pack("<2f", 1.0, 2.0)]
    assert read.outputs[0].name == "class"


CONTENTS = [
    ("BOOL", "bool_contents", [True, False]),
    ("INT8", "int_contents", [-1, 2]),
    ("UINT16", "uint_contents", [1, 2]),
    ("INT64", "int64_contents", [-(2**62), 2]),
    ("UINT64", "uint64_contents", [2**63, 2]),
    ("FP32", "fp32_contents", [0.5, 2.0]),
    ("FP64", "fp64_contents", [0.1, 2.0]),
    ("BYTES", "bytes_contents", [b"a", b"b"]),
]


@pytest.mark.parametrize(("datatype", "field", "values"), CONTENTS)
def test_an_answer_of_kserves_own_messages_is_read(
    datatype: str, field: str, values: list[Any]
) -> None:
    answer = theirs.ModelInferResponse()
    tensor = answer.outputs.add(name="y", datatype=datatype, shape=[2])
    getattr(tensor.contents, field).extend(values)
    tensor.parameters["binary"].bool_param = True
    (found,) = v2_grpc.read(answer.SerializeToString())
    assert found.data == [v.decode() if isinstance(v, bytes) else v for v in values]
