"""Stories of two ranks, as real processes over gloo."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.in_process import learned
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

Start = Callable[..., "object"]
LONG = "--epochs=2000"
SHORT = ("--epochs=2", "--batch-size=64", "--log-every=5")
NO_EXPORT, STOP = "no_export.py", "stop_in_step.py"


def test_a_run_that_was_stopped_and_resumed_equals_one_that_was_not(start_ranks, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    uninterrupted = start_ranks(
        2, *SHORT, f"--output={whole}", name="uninterrupted", prepare=NO_EXPORT
    )
    assert uninterrupted.exit_codes() == [0, 0]

    first = start_ranks(2, *SHORT, f"--output={parts}", name="first", prepare=STOP)
    assert first.exit_codes() == [143, 143]
    second = start_ranks(2, *SHORT, f"--output={parts}", name="second", prepare=NO_EXPORT)
    assert second.exit_codes() == [0, 0]
    assert "going on from" in second.output()

    expected = json.loads((whole / "metrics.json").read_text())
    found = json.loads((parts / "metrics.json").read_text())
    for name in ("train_loss", "loss", "accuracy", "lr"):
        assert found["curves"][name] == expected["curves"][name], name
    assert learned(found["metrics"]) == learned(expected["metrics"])
    assert found["world_size"] == 2
    assert uninterrupted.result()["world_size"] == 2


def test_every_node_has_the_whole_result_and_one_of_them_reports(start_ranks, tmp_path):
    arguments = ("--epochs=1", "--max-train-samples=128", f"--output={tmp_path / 'job'}")
    ranks = start_ranks(2, *arguments, prepare=NO_EXPORT, apart=True)
    assert ranks.exit_codes() == [0, 0]
    assert ranks.result(0) == ranks.result(1)
    assert ranks.result(0)["world_size"] == 2
    assert [" accuracy=" in ranks.output(rank) for rank in (0, 1)] == [True, False]


def test_a_second_sigterm_and_one_before_the_first_step_still_end_in_one_checkpoint(
    start_ranks, tmp_path
):
    ranks = start_ranks(2, LONG, f"--output={tmp_path / 'job'}")
    ranks.await_output("world_size=2")
    ranks.send(rank=0)
    ranks.send(rank=0)
    assert ranks.exit_codes() == [143, 143]
    checkpoints = [path.name for path in (tmp_path / "job" / "checkpoints").glob("step-*")]
    assert len(checkpoints) == 1


def test_sigterm_while_a_rank_waits_for_one_that_never_joins_ends_it_with_143(
    start_ranks, tmp_path
):
    output = f"--output={tmp_path / 'job'}"
    ranks = start_ranks(2, LONG, output, prepare="one_never_joins.py")
    ranks.await_output("joining")
    ranks.send(rank=0)
    assert ranks.exit_codes() == [143, 0]


def test_a_rank_that_is_killed_ends_the_other_quickly(start_ranks, tmp_path):
    ranks = start_ranks(2, LONG, f"--output={tmp_path / 'job'}")
    ranks.await_output("step=10 ")
    ranks.send(rank=1, number=signal.SIGKILL)
    assert ranks.exit_codes() == [138, -signal.SIGKILL]
    assert ranks.error(0)["rank"] == 0
    assert ranks.error(0)["type"] == "PeerLostError"


def test_a_lost_rank_is_noticed_even_if_no_main_thread_notices(start_ranks, tmp_path):
    arguments = (LONG, "--checkpoint-every=2000", f"--output={tmp_path / 'job'}")
    ranks = start_ranks(3, *arguments)
    ranks.await_output("step=10 ")
    # Rank 0 cannot notice anything while it is stopped, so rank 1 waits for it in vain.
    ranks.send(rank=0, number=signal.SIGSTOP)
    ranks.send(rank=2, number=signal.SIGKILL)
    ranks.processes[1].join(300)
    assert ranks.processes[1].exitcode == 138


def test_a_folder_that_rank_0_cannot_write_fails_all_ranks_with_the_same_message(
    start_ranks, tmp_path
):
    (tmp_path / "file").write_text("not a folder")
    ranks = start_ranks(2, f"--output={tmp_path / 'file' / 'job'}")
    assert ranks.exit_codes() == [1, 1]
    for rank in (0, 1):
        assert "cannot write" in ranks.error(rank)["message"]
        assert "--output" in ranks.error(rank)["message"]


def test_a_loss_that_is_not_finite_names_step_batch_and_samples_and_saves_nothing(
    start_ranks, tmp_path
):
    ranks = start_ranks(2, "--lr=4e9", "--log-every=1000", f"--output={tmp_path / 'job'}")
    assert ranks.exit_codes() == [1, 1]
    for rank in (0, 1):
        message = ranks.error(rank)["message"]
        assert "not a finite number" in message
        assert "epoch 0, batch" in message
        assert "samples [" in message
    assert not list((tmp_path / "job" / "checkpoints").glob("step-*"))


def test_no_rank_saves_a_diverged_step_when_another_has_ended_because_of_it(start_ranks, tmp_path):
    arguments = ("--lr=4e9", "--log-every=10", f"--output={tmp_path / 'job'}")
    ranks = start_ranks(2, *arguments, prepare="leave_slowly.py")
    ranks.processes[1].join(300)
    assert ranks.exit_codes()[1] == 1
    assert ranks.error(1)["type"] == "DivergedError"
    assert not list((tmp_path / "job" / "checkpoints").glob("step-*"))


def test_a_bad_step_of_one_rank_is_skipped_by_all_and_their_weights_stay_equal(
    start_ranks, tmp_path
):
    arguments = ("--epochs=1", "--skip-bad-steps=3", f"--output={tmp_path / 'job'}")
    ranks = start_ranks(2, *arguments, prepare="spoil_steps.py")
    assert ranks.exit_codes() == [0, 0]
    for number, step in ((1, 2), (2, 5)):
        words = f"skipped step {number} of at most 3: the loss of step {step} is not a finite"
        assert words in ranks.output(0)
    assert "rank 1, samples [" in ranks.output(0)
    weights = [re.findall(r"weights=(\w+)", ranks.output(rank)) for rank in (0, 1)]
    assert len(weights[0]) == 1
    assert weights[0] == weights[1]


def test_more_ranks_than_samples_is_an_error_and_not_a_wait(start_ranks, tmp_path):
    arguments = ("--max-train-samples=2", f"--output={tmp_path / 'job'}")
    ranks = start_ranks(3, *arguments)
    assert ranks.exit_codes() == [1, 1, 1]
    for rank in (0, 1, 2):
        assert "2 samples" in ranks.error(rank)["message"]
        assert "3 processes" in ranks.error(rank)["message"]


def test_samples_that_cannot_be_shared_evenly_do_not_make_ranks_wait(start_ranks, tmp_path):
    arguments = ("--epochs=2", "--batch-size=4", "--max-train-samples=10")
    ranks = start_ranks(3, *arguments, f"--output={tmp_path / 'job'}")
    assert ranks.exit_codes() == [0, 0, 0]
    assert ranks.result()["step"] == 2


def test_another_number_of_ranks_resumes_where_the_first_stopped(start_ranks, tmp_path: Path):
    arguments = ("--epochs=2", f"--output={tmp_path / 'job'}", "--log-every=5")
    first = start_ranks(2, *arguments, name="first", prepare=STOP)
    assert first.exit_codes() == [143, 143]
    second = start_ranks(1, *arguments, name="second", prepare=NO_EXPORT)
    assert second.exit_codes() == [0]
    assert "global_batch was 128 in the checkpoint, and is 64" in second.output()
    assert second.result()["epoch"] == 2


@pytest.mark.slow
def test_batch_norm_trains_on_what_more_ranks_find_left_of_an_epoch(start_ranks, tmp_path: Path):
    # 11 samples, fewer than a batch: ranks get 6 and 5 of them, and others to fill up with.
    samples = ("--batch-size=8", "--max-train-samples=67", "--epochs=1")
    arguments = ("--model=resnet18", *samples, "--lr=0.001", f"--output={tmp_path / 'job'}")
    first = start_ranks(1, *arguments, name="first", prepare=STOP)
    assert first.exit_codes() == [143]
    second = start_ranks(2, *arguments, name="second", prepare=NO_EXPORT)
    assert second.exit_codes() == [0, 0]
    assert second.result()["step"] == 8


def test_a_rank_that_is_left_alone_saves_the_last_step_from_its_memory(start_ranks, tmp_path):
    arguments = (LONG, "--checkpoint-every=2000", "--log-every=1", f"--output={tmp_path / 'job'}")
    first = start_ranks(2, *arguments, name="first")
    first.await_output("step=7 ")
    first.send(rank=1, number=signal.SIGKILL)
    assert first.exit_codes() == [138, -signal.SIGKILL]
    assert "from the memory of rank 0" in first.output()
    (saved,) = (tmp_path / "job" / "checkpoints").glob("step-*")
    step = int(saved.name.removeprefix("step-"))
    assert step >= 7
    second = start_ranks(2, *arguments, name="second")
    second.await_output(f"step={step + 1} ")
    assert f"at step {step}" in second.output()


@pytest.mark.slow
def test_an_epoch_that_a_rank_is_lost_after_is_reported_once(start_ranks, tmp_path):
    arguments = ("--epochs=2", "--checkpoint-every=9", f"--output={tmp_path / 'job'}")
    first = start_ranks(2, *arguments, name="first", prepare="leave_between_epochs.py")
    assert first.exit_codes() == [138, 3]
    assert "saved step 12 from the memory of rank 0" in first.output()
    second = start_ranks(2, *arguments, name="second", prepare=NO_EXPORT)
    assert second.exit_codes() == [0, 0]
    assert [step for step, _loss in second.result()["curves"]["loss"]] == [12, 24]
    events = EventAccumulator(str(tmp_path / "job/tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [12, 24]
