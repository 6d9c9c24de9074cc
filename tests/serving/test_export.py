from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness.predictions import answer_v1

from kfp_pytorch.serving import export, predictor
from kfp_pytorch.serving.errors import BadRequest
from kfp_pytorch.serving.export import ExportError


def image_of(quarter: int) -> list[list[list[int]]]:
    """A 4 x 4 image with one bright quarter: the class that the exported model says."""
    return [np.kron(np.eye(4, dtype=int)[quarter].reshape(2, 2), np.full((2, 2), 16)).tolist()]


@pytest.fixture
def copied(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "export"))


def change(folder: Path, **changes: Any) -> Path:
    path = folder / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def test_an_export_answers_with_class_label_and_score(exported: Path) -> None:
    loaded = predictor.Predictor(export.load(exported))
    loaded.warm_up()
    answers = answer_v1(loaded, {"instances": [image_of(3), image_of(1)]})["predictions"]
    assert [(a["class"], a["label"]) for a in answers] == [(3, "three"), (1, "one")]
    assert all(0.99 < a["score"] < 1 for a in answers)


def test_a_score_is_a_number_however_large_the_models_output_is(
    tmp_path: Path, write_export: Callable[..., Path]
) -> None:
    class Doubles(torch.nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return image.double().flatten(1)[:, :4] * 1e39

    outputs = [{"name": "logits", "shape": [-1, 4], "datatype": "FP64"}]
    served = predictor.Predictor(export.load(write_export(tmp_path, Doubles(), outputs=outputs)))
    answer = answer_v1(served, {"instances": [[[[1.0, 2, 3, 4]] * 4]]})
    assert answer == {"predictions": [{"class": 3, "label": "three", "score": 1.0}]}


def test_a_model_without_classes_answers_with_its_output(
    write_export: Callable[..., Path], tmp_path: Path
) -> None:
    loaded = predictor.Predictor(export.load(write_export(tmp_path, classes=[])))
    assert answer_v1(loaded, {"instances": [image_of(2)]}) == {"predictions": [[0, 0, 10, 0]]}


def test_a_label_that_is_not_utf8_is_answered_with_what_can_be_sent(copied: Path) -> None:
    change(copied, classes=["caf\udce9", "one", "two", "three"])
    loaded = predictor.Predictor(export.load(copied))
    (answer,) = answer_v1(loaded, {"instances": [image_of(0)]})["predictions"]
    assert answer["label"].encode() == rb"caf\udce9"


def test_more_rows_than_go_through_the_model_at_once_keep_their_order(exported: Path) -> None:
    loaded = predictor.Predictor(export.load(exported))
    quarters = [i % 4 for i in range(3 * predictor.MAX_BATCH + 1)]
    (answers,) = loaded.answer([np.array([image_of(q) for q in quarters], dtype=np.float32)])
    assert isinstance(answers, predictor.Answers)
    assert answers.classes is not None
    assert answers.classes[:, 0].tolist() == quarters


def test_one_nested_directory_is_found(exported: Path) -> None:
    assert export.find(exported.parent) == exported


def test_two_nested_exports_are_refused_by_name(exported: Path, tmp_path: Path) -> None:
    for name in ("b", "a"):
        shutil.copytree(exported, tmp_path / name)
    with pytest.raises(ExportError, match=r"several exports \(a, b\)"):
        export.find(tmp_path)


def test_an_empty_directory_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="The directory is empty: is the storage URI right"):
        export.load(tmp_path)


def test_a_bare_checkpoint_is_refused_with_a_listing(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    torch.save({"weight": torch.zeros(1)}, tmp_path / "checkpoints" / "model.pt")
    with pytest.raises(ExportError, match=r"It holds: checkpoints/model\.pt"):
        export.load(tmp_path)


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"/none does not exist"):
        export.load(tmp_path / "none")


def test_a_file_in_the_place_of_the_directory_is_refused_with_the_way_out(copied: Path) -> None:
    with pytest.raises(ExportError, match=r"model\.pt2 is a file: give its directory"):
        export.load(copied / "model.pt2")


def test_a_program_that_was_cut_short_is_refused_by_its_checksum(copied: Path) -> None:
    program = copied / "model.pt2"
    program.write_bytes(program.read_bytes()[:-100])
    with pytest.raises(
        ExportError, match=r"model\.pt2 is not the file that was exported: its \d+ bytes"
    ):
        export.load(copied)


def test_a_missing_program_is_named(copied: Path) -> None:
    (copied / "model.pt2").unlink()
    with pytest.raises(ExportError, match=r"model\.pt2 is missing. It holds: model\.json"):
        export.load(copied)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "torchscript"}, "format 'torchscript'; this predictor serves 'kfp-pytorch'"),
        ({"version": 2}, "version 2; this predictor knows version 1"),
        ({"files": {}}, "no checksum of model.pt2"),
        ({"files": {"model.pt2": {"sha256": "0"}}}, r"model\.pt2 is not the file"),
        ({"files": {"model.pt2": "0"}}, r"model\.pt2 is not the file"),
        ({"program": "other.pt2"}, r"no checksum of other\.pt2"),
        ({"inputs": []}, "inputs: this predictor serves models with exactly one"),
        ({"inputs": [{"name": "x"}]}, r"inputs\[0\]: needs name, shape and datatype"),
        ({"inputs": [{"name": "x", "shape": [-1, 2], "datatype": "FP8"}]}, "'FP8' is none of"),
        ({"inputs": [{"name": "x", "shape": [2], "datatype": "FP32"}]}, "must be -1, not"),
        *(
            ({"inputs": [{"name": "x", "shape": [-1, size], "datatype": "FP32"}]}, "each size is")
            for size in (0, -5, 1.5, "4", float("inf"))
        ),
        ({"preprocessing": [1]}, "preprocessing: must be an object"),
        ({"classes": "abc"}, "classes: must be a list of labels"),
    ],
)
def test_a_description_that_cannot_be_served_is_refused(
    copied: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ExportError, match=message):
        export.load(change(copied, **changes))


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00", "[" * 100_000])
def test_a_broken_description_is_refused(copied: Path, text: str) -> None:
    (copied / "model.json").write_text(text)
    with pytest.raises(ExportError, match=r"model\.json"):
        export.load(copied)


def test_a_description_or_program_that_memory_is_too_small_for_is_not_read(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as small:
        small.setattr(export, "memory_limit", lambda: 1000)
        with pytest.raises(ExportError, match="of memory, and this container has 1000 B"):
            export.load(copied)
    with (copied / "model.json").open("ab") as file:
        file.truncate(10**12)  # a hole, which takes no space
    with pytest.raises(ExportError, match="1,000,000,000,000 bytes; a description has at most"):
        export.load(copied)


def test_a_file_outside_the_export_is_not_read(copied: Path) -> None:
    files = {"../secret": "0", **json.loads((copied / "model.json").read_text())["files"]}
    with pytest.raises(ExportError, match=r"'\.\./secret' is not a plain name"):
        export.load(change(copied, files=files))


def test_a_file_that_the_predictors_user_may_not_read_is_refused(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path, *_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    # The tests may run as root, who may read everything.
    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(ExportError, match=r"cannot be read by user \d+ .*Permission denied"):
        export.load(copied)


def test_an_archive_with_pickled_objects_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data/constants/opaque_obj_0", b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(ExportError, match="holds pickled objects"):
        export._load_program(path)


def test_a_program_whose_output_does_not_fit_its_classes_is_not_served(copied: Path) -> None:
    loaded = predictor.Predictor(export.load(change(copied, classes=["a", "b", "c", "d", "e"])))
    with pytest.raises(predictor.ModelBroken, match=r"\[2, 4\] for 5 classes"):
        loaded.warm_up()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"inputs": [{"name": "x", "shape": [-1, 1, 9, 9], "datatype": "FP32"}]},
            r"fails on zeros \[2, 1, 9, 9\]",
        ),
        (
            {"inputs": [{"name": "x", "shape": [-1, 10**12], "datatype": "FP32"}]},
            r"inputs\[0\].shape is \[-1, 1000000000000\]; a batch of 2 takes 7.276 TiB, and this "
            r"container has .* of memory. Correct the shape",
        ),
        (
            {"inputs": [{"name": "x", "shape": [-1] * 11, "datatype": "INT64"}]},
            "a batch of 2 takes 16 PiB",
        ),
        (
            {"outputs": [{"name": "y", "shape": [-1, 4], "datatype": "INT64"}]},
            "gives float32 where INT64 is stated",
        ),
    ],
)
def test_a_program_that_is_not_what_its_description_says_is_not_served(
    copied: Path, changes: dict[str, Any], message: str
) -> None:
    loaded = predictor.Predictor(export.load(change(copied, **changes)))
    with pytest.raises(predictor.ModelBroken, match=message):
        loaded.warm_up()


class ScoresTokens(torch.nn.Module):
    """Looks up ten tokens: others make the program fail, whatever their shape."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = torch.nn.Embedding(10, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.scores(tokens).sum(1)
        return scores


@pytest.mark.parametrize("token", [10, -1])
def test_a_token_that_the_model_has_no_row_for_is_the_clients_fault(
    write_export: Callable[..., Path], tmp_path: Path, token: int
) -> None:
    folder = write_export(
        tmp_path,
        ScoresTokens(),
        torch.zeros(2, 3, dtype=torch.int64),
        inputs=[{"name": "tokens", "shape": [-1, 3], "datatype": "INT64"}],
        preprocessing={"values": [0, 9]},
    )
    loaded = predictor.Predictor(export.load(folder))
    assert len(answer_v1(loaded, {"instances": [[1, 2, 9]]})["predictions"]) == 1
    with pytest.raises(BadRequest, match=r"does not take this input: .*'values': \[0, 9\]"):
        answer_v1(loaded, {"instances": [[1, 2, token]]})


def test_a_model_whose_longest_text_is_short_is_served(
    write_export: Callable[..., Path], tmp_path: Path
) -> None:
    lengths = {1: torch.export.Dim("length", min=1, max=16)}
    folder = write_export(
        tmp_path,
        ScoresTokens(),
        torch.zeros(2, 3, dtype=torch.int64),
        sizes=lengths,
        inputs=[{"name": "tokens", "shape": [-1, -1], "datatype": "INT64"}],
        preprocessing={"longest": 16},
    )
    loaded = predictor.Predictor(export.load(folder))
    loaded.warm_up()
    assert len(answer_v1(loaded, {"instances": [[1] * 16]})["predictions"]) == 1
    with pytest.raises(BadRequest, match=r"does not take this input: .*'longest': 16"):
        answer_v1(loaded, {"instances": [[1] * 17]})


def test_a_program_that_gives_nan_is_not_served(
    write_export: Callable[..., Path], tmp_path: Path
) -> None:
    class Broken(torch.nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return torch.log(image.flatten(1)[:, :4] - 1)

    loaded = predictor.Predictor(export.load(write_export(tmp_path, Broken())))
    with pytest.raises(predictor.ModelBroken, match="NaN or infinity"):
        loaded.warm_up()
