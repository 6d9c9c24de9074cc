"""Explanations: what they say, and what is answered where there can be none."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kfp_pytorch.serving import explainer, export
from kfp_pytorch.serving.errors import BadRequest, DeadlineExceeded, NotFound
from kfp_pytorch.serving.explainer import Explainer, Explanation, Wish
from kfp_pytorch.serving.predictor import Predictor
from kfp_pytorch.serving.protocol import v1

# Servers, captum or ONNX start here, which takes long.
pytestmark = pytest.mark.slow

# The third quarter is the brightest.
IMAGE = np.array([[[[0, 0, 1, 1], [0, 0, 1, 1], [16, 16, 0, 0], [16, 16, 0, 0]]]], np.float32)
URL = "/v1/models/digits:explain"


class Rounds(torch.nn.Module):
    """Has no gradient on the way to its output."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return (image.flatten(1)[:, :4] > 0.5).float()


class Squares(torch.nn.Module):
    """A regression over a vector: the sum of its squares, which is no straight line."""

    def forward(self, vector: torch.Tensor) -> torch.Tensor:
        return (vector**2).sum(1, keepdim=True)


def never() -> bool:
    return False


@pytest.fixture
def explains(exported: Path) -> Explainer:
    return Explainer(Predictor(export.load(exported)))


def explained(explains: Explainer, rows: Any, **wish: Any) -> Explanation:
    (found,) = explains.explain([rows], Wish(**wish), never)
    return found


@pytest.mark.slow
def test_the_pixels_that_a_class_is_made_of_explain_it(explains: Explainer) -> None:
    found = explained(explains, IMAGE)
    assert found.target == 2
    assert found.score > 0.99
    assert found.attributions.shape == (1, 4, 4)
    # Each of the four pixels adds a quarter of 10; the dark ones, and other quarters, nothing.
    assert np.allclose(found.attributions[0, 2:, :2], 2.5)
    assert np.allclose(found.attributions.sum(), 10)
    assert abs(found.delta) < 1e-4


@pytest.mark.slow
def test_a_request_chooses_the_class_the_baseline_and_the_steps(explains: Explainer) -> None:
    found = explained(explains, IMAGE, target=1, baseline=1.0, steps=4)
    assert (found.target, found.score < 0.01) == (1, True)
    # These pixels are the baseline.
    assert np.allclose(found.attributions, 0)


@pytest.mark.slow
def test_a_regression_over_a_vector_is_explained(
    write_export: Callable[..., Path], tmp_path: Path
) -> None:
    folder = write_export(
        tmp_path,
        Squares(),
        torch.zeros(2, 3),
        classes=[],
        inputs=[{"name": "vector", "shape": [-1, 3], "datatype": "FP32"}],
        outputs=[{"name": "sum", "shape": [-1, 1], "datatype": "FP32"}],
    )
    explains = Explainer(Predictor(export.load(folder)))
    found = explained(explains, np.array([[1, 2, 3]], np.float32))
    assert (found.target, found.score) == (0, 14)
    assert np.allclose(found.attributions, [1, 4, 9], atol=1e-3)


@pytest.mark.slow
def test_a_model_without_gradients_has_no_explanations(
    write_export: Callable[..., Path], tmp_path: Path
) -> None:
    explains = Explainer(Predictor(export.load(write_export(tmp_path, Rounds()))))
    with pytest.raises(NotFound, match="the model's output has no gradient by its input"):
        explained(explains, IMAGE)


@pytest.mark.slow
def test_what_nobody_waits_for_is_given_up_within_a_row(explains: Explainer) -> None:
    asked = 0

    def soon() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    with pytest.raises(DeadlineExceeded, match="the explanations took too long"):
        explains.explain([IMAGE], Wish(steps=256), soon)
    assert asked == 4


@pytest.mark.slow
def test_it_is_answered_over_http_and_counted(server: Any) -> None:
    body = {"instances": IMAGE.tolist(), "parameters": {"steps": 8}}
    response = server.post(URL, body)
    assert response.status == 200, response.data
    (found,) = response.json()["explanations"]
    assert (found["class"], found["label"]) == (2, "two")
    assert found["attributions"][0][2][0] == pytest.approx(2.5)
    assert found.keys() == {"class", "label", "score", "attributions", "delta"}
    late = server.post(URL, body, x_request_timeout_ms="1")
    # The time may be over before the body was read.
    assert (late.status, late.headers.get("retry-after")) in ((503, "1"), (408, None))
    page = server.http.request("GET", "/metrics").data.decode()
    assert 'kfp_pytorch_requests_total{model_name="digits",protocol="explain",status="200"}' in page


def test_a_large_request_is_refused_before_anything_is_computed(explains: Explainer) -> None:
    with pytest.raises(BadRequest, match="17 are more than the 16 of a request"):
        explained(explains, np.concatenate([IMAGE] * 17))


def test_a_class_that_there_is_not_is_refused(explains: Explainer) -> None:
    with pytest.raises(BadRequest, match=r"parameters.target: must be a whole number from 0 to 3"):
        explained(explains, IMAGE, target=4)


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"steps": 0}, "parameters.steps: must be a whole number from 1 to 256, not 0"),
        ({"steps": 1e9}, "parameters.steps"),
        ({"target": -1}, "parameters.target: must be a whole number from 0 on, not -1"),
        ({"target": "two"}, "parameters.target"),
        ({"baseline": "black"}, "parameters.baseline: must be a number, not 'black'"),
        ({"baseline": True}, "parameters.baseline"),
        ([], "parameters: must be an object"),
    ],
)
def test_parameters_that_cannot_be_are_the_clients_fault(
    server: Any, parameters: Any, reason: str
) -> None:
    response = server.post(URL, {"instances": IMAGE.tolist(), "parameters": parameters})
    assert response.status == 400
    assert reason in response.json()["error"]


def test_whole_numbers_have_no_gradients(write_export: Callable[..., Path], tmp_path: Path) -> None:
    tokens = [{"name": "tokens", "shape": [-1, 1, 4, 4], "datatype": "INT64"}]
    whole = export.load(write_export(tmp_path, inputs=tokens))
    with pytest.raises(NotFound, match="explanations are of inputs of floats"):
        Explainer(Predictor(whole)).check()


def test_without_captum_it_is_told_what_to_install(
    explains: Explainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(NotFound, match=r"kfp-pytorch\[serving,explain\]"):
        explains.check()


def test_the_baseline_is_the_darkest_value_unless_a_request_says_otherwise(
    exported: Path,
) -> None:
    loaded = export.load(exported)
    body = b'{"instances": [[[[1,1,1,1],[1,1,1,1],[1,1,1,1],[1,1,1,1]]]], "parameters": {}}'
    (rows,), wish = v1.read_wish(body, loaded)
    assert rows.shape == (1, 1, 4, 4)
    assert wish == Wish(None, explainer.STEPS, None)
    assert loaded.values[0] == 0
