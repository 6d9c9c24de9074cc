"""A language model is fine-tuned, resumed and exported, with nothing downloaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("datasets")
pytest.importorskip("trl")
pytest.importorskip("peft")

from kfp_pytorch.training.errors import DataError
from kfp_pytorch.training.fine_tune import arguments, data, made_up

# Transformers and TRL take long to import.
pytestmark = pytest.mark.slow


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    message = folder / "message"
    message.touch()
    return subprocess.run(
        [sys.executable, "-m", "kfp_pytorch.training.fine_tune", "--learning-rate=0.02", *words],
        env={
            **os.environ,
            "KFP_PYTORCH_OUTPUT": str(folder / "job"),
            "KFP_PYTORCH_TERMINATION_LOG": str(message),
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(folder / "cache"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


def losses(folder: Path) -> list[float]:
    curves = json.loads((folder / "job" / "metrics.json").read_text())["curves"]
    return [value for _, value in curves["eval_loss"]]


def test_it_learns_goes_on_where_it_was_and_exports_the_merged_model(tmp_path: Path) -> None:
    first = run(tmp_path, "--epochs=2")
    assert first.returncode == 0, first.stderr
    second = run(tmp_path, "--epochs=3")
    assert second.returncode == 0, second.stderr
    assert "resuming from" in second.stdout + second.stderr
    found = losses(tmp_path)
    assert len(found) == 3
    assert found[-1] < 5, "that of chance is the logarithm of 258"
    message = json.loads((tmp_path / "message").read_text())
    assert message["export"]["model"]["format"] == "huggingface"
    export = tmp_path / "job" / "export"
    described = json.loads((export / "model.json").read_text())
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= described["files"].keys()

    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(export)
    tokens = AutoTokenizer.from_pretrained(export)
    assert type(model).__name__ == "LlamaForCausalLM", "no adapter is beside the weights"
    asked = tokens("1 + 2 =", return_tensors="pt")
    assert model.generate(**asked, max_new_tokens=2, do_sample=False).shape[1] > 7


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_examples_come_from_all_files_of_a_folder_and_some_are_held_out(tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.jsonl", [{"text": f"a{n}"} for n in range(6)])
    write(tmp_path / "data" / "more" / "b.jsonl", [{"text": f"b{n}"} for n in range(4)])
    write(tmp_path / "data" / ".cache" / "c.jsonl", [{"other": 1}])
    (tmp_path / "data" / "README.md").write_text("about")
    train, held_out = data.load(str(tmp_path / "data"), 0.2, 0)
    assert (len(train), len(held_out)) == (8, 2)
    assert not set(train["text"]) & set(held_out["text"])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"question": "a"}, {"question": "b"}], "have the columns question; they need messages"),
        ([{"text": "a"}], "there is 1 example"),
    ],
)
def test_examples_that_cannot_be_trained_on_are_refused(
    tmp_path: Path, rows: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(DataError, match=said):
        data.load(str(write(tmp_path / "a.jsonl", rows)), 0.1, 0)


def test_files_of_several_formats_and_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no file that ends in \.jsonl"):
        data.load(str(tmp_path), 0.1, 0)
    write(tmp_path / "a.jsonl", [{"text": "a"}])
    (tmp_path / "b.csv").write_text("text\na\n")
    with pytest.raises(DataError, match=r"several formats, (json and csv|csv and json)"):
        data.load(str(tmp_path), 0.1, 0)


def test_the_made_up_tokenizer_keeps_every_text() -> None:
    tokens = made_up.tokenizer()
    assert tokens.decode(tokens("12 + 7 = 19 é").input_ids) == "12 + 7 = 19 é"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--epochs=0", "0 must be at least 1"),
        ("--learning-rate=0", "0 must be above 0"),
        ("--held-out=0.6", "0.6 must be above 0 and at most 0.5"),
        ("--lora-rank=x", "invalid whole number value: 'x'"),
        ("--batch-size=1.5", "invalid whole number value"),
    ],
)
def test_arguments_that_cannot_work_end_with_code_2(
    word: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments.read([word])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
