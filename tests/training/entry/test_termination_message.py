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
    whole = {**result(), "samples": [{"instance": image, "prediction": 3, "label": 4}] * 10}
    (sample, *_) = json.loads(success_message(whole))["samples"]
    assert list(zlib.decompress(base64.b64decode(sample["packed"]))) == [
        pixel for row in image[0] for pixel in row
    ]
    assert (sample["shape"], sample["prediction"], sample["label"]) == ([1, 28, 28], 3, 4)


def test_an_instance_of_other_numbers_than_pixels_travels_as_it_is():
    for instance in ([[0.5, 2.0]], [[256, 1]], [[-1, 2]], "text"):
        sample = {"instance": instance, "prediction": 3}
        assert json.loads(success_message({**result(), "samples": [sample]}))["samples"] == [sample]


def test_an_answer_travels_with_six_digits_whatever_its_shape():
    sample = {"instance": [0.123456789], "prediction": [[1 / 3, 2], [0.5, -2e-9 / 3]], "label": 1}
    (sent,) = json.loads(success_message({**result(), "samples": [sample]}))["samples"]
    assert sent == {**sample, "prediction": [[0.333333, 2], [0.5, -6.66667e-10]]}


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


def test_of_a_long_training_with_many_curves_no_metric_is_lost():
    names = [f"{part}/{name}" for part in ("train", "val") for name in ("loss", "f1", "auc", "r2")]
    names += ["train/top5_accuracy", "val/top5_accuracy", "lr", "grad_norm"]
    curves = {name: [[epoch, 1 / (epoch + 3)] for epoch in range(70)] for name in names}
    metrics = {name: points[-1][1] for name, points in curves.items()}
    text = success_message({**result(), "metrics": metrics, "curves": curves, "checkpoint": 70})
    assert len(text.encode()) <= LIMIT
    message = json.loads(text)
    assert set(message["metrics"]) == set(names)
    assert message["checkpoint"] == 70
    assert "left_out" not in message
    assert set(message["curves"]) == set(names)
    assert all(curve[0][0] == 0 and curve[-1][0] == 69 for curve in message["curves"].values())


def test_metrics_for_which_there_is_no_room_are_counted():
    metrics = {f"metric_of_group_{number}": number / 7 for number in range(500)}
    text = success_message({**result(), "metrics": metrics})
    assert len(text.encode()) <= LIMIT
    message = json.loads(text)
    kept = message["metrics"]
    assert list(kept) == [f"metric_of_group_{number}" for number in range(len(kept))]
    assert len(kept) > 30
    assert message["left_out"] == 500 - len(kept)
    assert message["export"]["sha256"] == "0" * 64


def test_of_70_epochs_of_41_metrics_those_that_do_not_fit_are_counted_and_so_are_the_curves():
    names = [f"validation/task_{number:02d}/balanced_accuracy" for number in range(40)]
    curves = {name: [[epoch, epoch / 7] for epoch in range(70)] for name in [*names, "accuracy"]}
    metrics = {name: points[-1][1] for name, points in curves.items()}
    text = success_message({**result(), "metrics": metrics, "curves": curves})
    assert len(text.encode()) <= LIMIT
    message = json.loads(text)
    assert message["left_out"] == 41 - len(message["metrics"]) > 0
    assert message["curves_left_out"] == 41
    assert "curves" not in message
    # With fewer metrics, no curve takes the place of one.
    text = success_message(
        {**result(), "metrics": dict.fromkeys(names[:20], 0.5), "curves": curves}
    )
    message = json.loads(text)
    assert len(message["metrics"]) == 20
    assert message["curves_left_out"] + len(message.get("curves", {})) == 41


def test_metrics_that_are_not_finite_are_named():
    message = json.loads(success_message(result()))
    assert message["not_finite"] == {"odd": "nan"}


@pytest.mark.parametrize("name", ["x" * 3000, "\x00" * 3000, "\udcff" * 3000])
def test_no_name_however_long_makes_the_message_longer_than_its_limit(name):
    whole = result()
    whole["export"]["model"]["outputs"][0]["name"] = name
    text = success_message({**whole, "metrics": {"accuracy": 0.9, name: 1.0}})
    assert len(text.encode()) <= LIMIT
    message = json.loads(text)
    assert message["metrics"] == {"accuracy": 0.9}
    assert message["left_out"] == 1
    assert message["export"]["model"] == {"format": "kfp-pytorch", "versions": {"torch": "2.8.0"}}
    text = success_message({"metrics": {}, "world_size": 1, "no_export": name})
    assert len(text.encode()) <= LIMIT
