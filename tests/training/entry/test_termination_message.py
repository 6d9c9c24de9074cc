from __future__ import annotations

import base64
import json
import zlib

import pytest

from kfp_pytorch.training.entry.rank_records import Failure
from kfp_pytorch.training.entry.termination_message import (
    failure_message,
    success_message,
    write_message,
)

LIMIT = 2048


def result(classes=10, points=500, samples=16, pixels=8):
    row = list(range(pixels))
    return {
        "metrics": {"accuracy": 0.98765432, "loss": 0.1, "odd": float("nan")},
        "world_size": 2,
        "export": {
            "path": "export",
            "sha256": "0" * 64,
            "model": {
                "format": "kfp-pytorch",
                "inputs": [{"name": "image", "shape": [-1, 1, pixels, pixels]}],
                "outputs": [{"name": "logits", "shape": [-1, classes]}],
                "classes": [f"class {number}" for number in range(classes)],
                "versions": {"torch": "2.8.0"},
            },
        },
        "curves": {name: [[step, 1 / (step + 1)] for step in range(points)] for name in "abc"},
        "samples": [{"instance": [[row] * pixels], "prediction": 3}] * samples,
    }


@pytest.mark.parametrize("classes", [1, 10, 1000])
@pytest.mark.parametrize("points", [0, 3, 20_000])
@pytest.mark.parametrize("pixels", [8, 28, 112])
def test_a_message_always_fits_with_complete_metrics_and_export(classes, points, pixels):
    text = success_message(result(classes=classes, points=points, pixels=pixels))
    assert len(text.encode()) <= LIMIT
    message = json.loads(text)
    assert message["metrics"] == {"accuracy": 0.987654, "loss": 0.1}
    assert message["export"]["sha256"] == "0" * 64
    assert message["export"]["model"]["outputs"][0]["shape"] == [-1, classes]
    assert ("classes" in message["export"]["model"]) == (classes < 1000)


def test_digits_leave_room_for_samples_and_for_curves_from_end_to_end():
    message = json.loads(success_message(result()))
    assert len(message["samples"]) >= 3
    for curve in message["curves"].values():
        assert len(curve) >= 12
        assert curve[0][0] == 0
        assert curve[-1][0] == 499


def test_an_image_of_clothes_fits_as_packed_pixels():
    image = [[[(17 * row * column) % 256 for column in range(28)] for row in range(28)]]
    whole = {**result(), "samples": [{"instance": image, "prediction": 3}] * 10}
    (sample, *_) = json.loads(success_message(whole))["samples"]
    assert list(zlib.decompress(base64.b64decode(sample["packed"]))) == [
        pixel for row in image[0] for pixel in row
    ]
    assert (sample["shape"], sample["prediction"]) == ([1, 28, 28], 3)


def test_an_instance_of_other_numbers_than_pixels_travels_as_it_is():
    for instance in ([[0.5, 2.0]], [[256, 1]], [[-1, 2]], "text"):
        sample = {"instance": instance, "prediction": 3}
        assert json.loads(success_message({**result(), "samples": [sample]}))["samples"] == [sample]


def test_no_curve_has_more_than_64_points_however_much_room_there_is():
    message = json.loads(success_message(result(samples=0), limit=100_000))
    assert [len(curve) for curve in message["curves"].values()] == [64, 64, 64]


@pytest.mark.parametrize("text", ["short", "é" * 5000, "\x00\x1b" * 3000, "'\\" * 3000, "🔥" * 999])
def test_a_failure_fits_and_keeps_the_end_of_its_traceback(text):
    failure = Failure(1, 1764230000.5, "ValueError", "bad value", f"Traceback {text} THE END")
    message = failure_message(failure)
    assert len(message.encode()) <= LIMIT
    error = json.loads(message)["error"]
    assert error["traceback"].endswith(" THE END")
    assert (error["rank"], error["time"], error["type"]) == (1, 1764230000.5, "ValueError")


@pytest.mark.parametrize("message", ["x" * 10_000, "\udcff" * 4000])
def test_a_failure_whose_message_alone_is_too_long_is_shortened(message):
    text = failure_message(Failure(0, 1.0, "E" * 500, message, "Traceback"))
    assert len(text.encode()) <= LIMIT
    assert json.loads(text)["error"]["message"]


def test_the_message_is_written_in_place_and_only_where_a_pod_has_a_file_for_it(tmp_path):
    path = tmp_path / "termination-log"
    path.write_text("what was there before, and is longer")
    inode = path.stat().st_ino
    write_message("{}", {"KFP_PYTORCH_TERMINATION_LOG": str(path)})
    assert path.read_text() == "{}"
    assert path.stat().st_ino == inode


def test_a_message_that_cannot_be_written_changes_nothing_else(tmp_path, capsys):
    write_message("{}", {"KFP_PYTORCH_TERMINATION_LOG": str(tmp_path / "no" / "log")})
    assert "no/log cannot be written to (No such file" in capsys.readouterr().err
