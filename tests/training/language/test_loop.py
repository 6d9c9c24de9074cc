"""A language model in the loop: stopped and resumed, split over ranks, exported."""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path

import pytest
import torch
from harness.in_process import NEVER, StopAt, learned, newest_state

from kfp_pytorch.training.arguments.config import parse
from kfp_pytorch.training.entry.termination_message import success_message
from kfp_pytorch.training.errors import CheckpointError, ConfigError, Stopped
from kfp_pytorch.training.language import export, loop
from kfp_pytorch.training.language.trainable import Trainable
from kfp_pytorch.training.language.transformer import TransformerConfig
from kfp_pytorch.training.lifecycle import Start
from kfp_pytorch.training.parallel.process_group import ALONE

TEXT = Path(loop.__file__)
SMALL = ("--model=lm-tiny", "--seq-len=16", "--max-steps=12", "--log-every=3")


def run(output, *arguments, stop_at=NEVER, text=TEXT):
    torch.set_num_threads(1)
    given = [*SMALL, "--batch-size=8", f"--output={output}", f"--text-files={text}", *arguments]
    return loop.train(Start(parse(given), ALONE, StopAt(stop_at)))


@pytest.fixture
def no_export(monkeypatch):
    """Leaves out what takes longest, where the story is another."""
    monkeypatch.setattr(export, "write_export", lambda *_: {})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    output = tmp_path_factory.mktemp("whole")
    return output, run(output)


def test_a_run_stopped_anywhere_and_resumed_is_bit_for_bit_one_that_was_not(
    whole, no_export, tmp_path
):
    for looks in (0, 4, 5):
        with pytest.raises(Stopped):
            run(tmp_path, stop_at=looks)
    parts = run(tmp_path)
    assert learned(parts["metrics"]) == learned(whole[1]["metrics"])
    assert parts["curves"] == whole[1]["curves"]
    expected, found = newest_state(whole[0]), newest_state(tmp_path)
    for part in ("model", "optimizer"):
        for name, value in expected[part].items():
            assert torch.equal(found[part][name], value), name


def test_training_that_ends_within_an_epoch_is_evaluated_in_that_epoch(no_export, tmp_path, capsys):
    run(tmp_path, "--max-steps=3")
    reports = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]]
    assert reports == [["epoch=1", "step=3"]] * 2


def test_it_learns_and_its_export_says_the_next_byte(whole):
    output, result = whole
    losses = [value for _, value in result["curves"]["train_loss"]]
    assert losses[-1] < losses[0]
    program = torch.export.load(output / "export" / "model.pt2").module()
    samples = json.loads((output / "export" / "samples.json").read_text())
    for sample in samples:
        logits = program(torch.tensor([sample["instance"]]))
        assert logits.shape == (1, 256)
        assert int(logits.argmax()) == sample["prediction"]
    assert len(samples) == 4
    assert json.loads(success_message(result))["export"]["model"]["inputs"][0]["name"] == "tokens"


def test_a_model_that_is_too_large_for_one_process_says_why_it_is_not_exported(whole):
    large = TransformerConfig(dim=4096, layers=32, heads=32, hidden=11008)
    exported = export.write_export(None, large, None, None)
    message = json.loads(success_message({**whole[1], **exported}))
    assert "export" not in message
    assert "its weights are in the newest checkpoint" in message["no_export"]


def spoil(monkeypatch, step):
    forward_backward, numbers = Trainable.forward_backward, itertools.count(1)

    def spoiled(self, batch):
        loss = forward_backward(self, batch)
        return loss * float("nan") if next(numbers) == step else loss

    monkeypatch.setattr(Trainable, "forward_backward", spoiled)


def test_a_bad_step_is_skipped_where_that_was_asked(no_export, tmp_path, monkeypatch, caplog):
    spoil(monkeypatch, 4)
    with caplog.at_level(logging.WARNING):
        result = run(tmp_path, "--skip-bad-steps=1")
    assert result["step"] == 12
    assert result["metrics"]["loss"] < 6
    assert "skipped step 1 of at most 1: the loss of step 4 is not a finite" in caplog.text


def test_a_checkpoint_after_a_skipped_first_step_changes_nothing(no_export, tmp_path, monkeypatch):
    # The optimizer has no state then, and is not made one that counts a step which never was.
    for name, every in (("saved", 1), ("unsaved", 0)):
        with monkeypatch.context() as patch:
            spoil(patch, 1)
            more = ("--max-steps=2", f"--checkpoint-every-steps={every}")
            run(tmp_path / name, "--skip-bad-steps=1", *more)
    saved, unsaved = newest_state(tmp_path / "saved"), newest_state(tmp_path / "unsaved")
    for name, value in unsaved["model"].items():
        assert torch.equal(saved["model"][name], value), name


def test_other_text_is_refused(tmp_path):
    with pytest.raises(Stopped):
        run(tmp_path, stop_at=2)
    with pytest.raises(CheckpointError, match="read text with sha256"):
        run(tmp_path, text=Path(__file__))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model=lm-huge"], "--model is 'lm-huge'; it can be lm-tiny"),
        (["--dataset=digits"], "dataset of lm-tiny"),
        (["--optimizer=sgd"], "optimizer of lm-tiny is 'sgd'; it can be adamw"),
        (["--parallelism=fsdp3"], "'fsdp3' is none of"),
        (["--parallelism=tp=2"], "needs 2 ranks; there are 1"),
        (["--text-files=/no/such/file"], "cannot be read"),
        (["--seq-len=4096"], "lower --seq-len"),
        (["--data-dir=/my/text"], "--data-dir is '/my/text', and lm-tiny has no use for it"),
    ],
)
def test_what_cannot_work_is_said(tmp_path, arguments, words):
    with pytest.raises(ConfigError, match=words):
        run(tmp_path, *arguments)


def test_an_image_model_takes_no_other_plan_than_ddp():
    with pytest.raises(ConfigError, match="image models take ddp alone"):
        parse(["--parallelism=fsdp2"])


def test_an_image_model_takes_no_argument_of_language_models():
    with pytest.raises(ConfigError, match="--max-steps is 5, and small_cnn has no use for it"):
        parse(["--max-steps=5"])


@pytest.mark.slow
def test_a_model_sharded_over_two_ranks_resumes_in_one_with_the_same_results(
    whole, no_export, start_ranks, tmp_path
):
    arguments = (*SMALL, "--parallelism=fsdp2", f"--output={tmp_path / 'job'}")
    arguments = (*arguments, f"--text-files={TEXT}")
    first = start_ranks(
        2,
        *arguments,
        "--batch-size=4",
        "--max-steps=6",
        "--skip-bad-steps=1",
        prepare="no_export.py",
    )
    assert first.exit_codes() == [0, 0], first.output() + first.output(1)
    assert first.result()["step"] == 6
    names = {path.name for path in (tmp_path / "job" / "checkpoints" / "step-00000006").iterdir()}
    assert names == {"__0_0.distcp", "__1_0.distcp", ".metadata", "meta.json"}
    second = run(tmp_path / "job", "--parallelism=fsdp2")
    # The rate of the first six steps was that of a shorter training.
    assert second["step"] == 12
    assert second["metrics"]["loss"] == pytest.approx(whole[1]["metrics"]["loss"], rel=0.03)
