"""Any failure of one rank ends all others quickly, and is the one that is reported."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from harness.pictures import encoded

from kfp_pytorch.training.faults import watchdog
from kfp_pytorch.training.faults.stopping import StopRequest
from kfp_pytorch.training.faults.watchdog import Heartbeat, watched
from kfp_pytorch.training.parallel.process_group import ALONE

FAULTS = runpy.run_path(str(Path(__file__).parents[1] / "programs" / "faults.py"))
LONG = ("--epochs=2000", "--log-every=5")
GONE = AGAIN = 138


@pytest.fixture
def running(start_ranks, tmp_path):
    """Two ranks in the middle of training."""

    def start(*arguments, size=2):
        ranks = start_ranks(size, *LONG, *arguments, f"--output={tmp_path / 'job'}")
        ranks.await_output("step=10 ")
        return ranks

    return start


def test_an_exception_of_one_rank_is_recorded_before_the_others_notice(running):
    ranks = running()
    ranks.send(1, FAULTS["RAISE"])
    assert ranks.exit_codes() == [GONE, 1]
    first = ranks.error(1)
    assert (first["type"], first["message"]) == ("ValueError", "a fault of the test's own")
    assert "raise_here" in first["traceback"]
    assert ranks.error(0)["time"] >= first["time"]


@pytest.mark.parametrize(
    ("place", "rank"), [("loading", 1), ("evaluating", 1), ("saving", 1), ("exporting", 0)]
)
def test_a_rank_that_fails_between_steps_ends_the_other_and_is_reported_first(
    start_ranks, tmp_path, place, rank
):
    (tmp_path / "fault").write_text(f"{place} {rank}")
    arguments = ("--epochs=1", "--max-train-samples=128", f"--output={tmp_path / 'job'}")
    ranks = start_ranks(2, *arguments, prepare="fail_in.py")
    assert ranks.exit_codes() == ([1, GONE] if rank == 0 else [GONE, 1])
    first = ranks.error(rank)
    assert first["message"] == f"a fault of the test's own while {place}"
    assert "in fail" in first["traceback"]
    assert ranks.error(1 - rank)["time"] >= first["time"]


def test_an_argument_that_cannot_work_ends_its_rank_with_2_and_the_others_notice(
    start_ranks, tmp_path
):
    ranks = start_ranks(2, f"--output={tmp_path}", rank1=["--model=resnet_of_nobody"])
    assert ranks.exit_codes() == [GONE, 2]
    first = ranks.error(1)
    assert first["type"] == "ConfigError"
    assert "resnet_of_nobody" in first["message"]
    assert ranks.error(0)["time"] >= first["time"]


def test_an_unavailable_store_ends_every_rank_with_a_retryable_exit_code(start_ranks):
    ranks = start_ranks(2, "--output=s3://bucket/job", prepare="away_store.py")
    assert ranks.exit_codes() == [AGAIN, AGAIN]
    for rank in (0, 1):
        assert ranks.error(rank)["type"] == "StoreUnavailableError"
        assert ranks.error(rank)["exit_code"] == AGAIN


def test_an_image_that_is_broken_ends_its_rank_with_its_name_and_the_others_notice(
    start_ranks, tmp_path
):
    for number in range(16):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(torch.zeros(3, 8, 8, dtype=torch.uint8)))
    # The other's is of 16 images of the same size, so that both begin to train.
    shutil.copytree(tmp_path / "images", tmp_path / "broken")
    for path in (tmp_path / "broken").rglob("*.jpg"):
        path.write_bytes(b"no image")
    arguments = ("--dataset=imagefolder", "--workers=0", "--image-size=8", "--batch-size=2")
    ranks = start_ranks(
        2,
        *(*arguments, f"--output={tmp_path / 'job'}"),
        rank0=[f"--data-dir={tmp_path / 'images'}"],
        rank1=[f"--data-dir={tmp_path / 'broken'}"],
    )
    assert ranks.exit_codes() == [GONE, 1]
    assert re.search(r"broken/\w/\d+.jpg cannot be decoded", ranks.error(1)["message"])
    assert ranks.error(0)["type"] == "PeerLostError"


def test_a_rank_that_ends_without_an_error_is_noticed(running):
    ranks = running()
    ranks.send(1, FAULTS["LEAVE"])
    assert ranks.exit_codes() == [GONE, 3]


def test_a_rank_that_hangs_records_where_and_those_that_wait_for_it_do_not(running):
    ranks = running("--rank-timeout=4")
    ranks.send(1, FAULTS["HANG"])
    assert ranks.exit_codes() == [GONE, GONE]
    hung = ranks.error(1)
    assert hung["type"] == "RankHungError"
    assert "no progress for 4 seconds at step" in hung["message"]
    assert "in hang_here" in hung["traceback"]
    assert ranks.error(0)["type"] == "PeerLostError"
    assert ranks.error(0)["time"] >= hung["time"]


@pytest.mark.slow
def test_a_rank_that_is_frozen_is_named_by_one_that_waits_for_it(running):
    ranks = running("--rank-timeout=4")
    # By then each has told where it is, which it does every 0.4 s.
    ranks.await_output("step=200 ")
    ranks.send(1, signal.SIGSTOP)
    ranks.processes[0].join(300)
    assert ranks.processes[0].exitcode == GONE
    error = ranks.error(0)
    assert error["type"] == "RankHungError"
    assert "rank 1 makes no progress at step" in error["message"]


def test_a_rank_alone_that_hangs_ends_itself(running):
    ranks = running("--rank-timeout=4", size=1)
    ranks.send(0, FAULTS["HANG"])
    assert ranks.exit_codes() == [GONE]
    assert "in hang_here" in ranks.error(0)["traceback"]


def test_a_rank_that_can_write_neither_its_record_nor_its_output_still_ends(tmp_path):
    hangs = """
import threading
from kfp_pytorch.training import errors, rank
print("a line that waits to be written")
error = errors.RankHungError("no progress")
threading.Thread(target=rank._hung, args=[error], daemon=True).start()
threading.Event().wait()
"""
    reader, writer = os.pipe()
    os.close(reader)
    record = str(tmp_path / "gone" / "error.json")
    environ = {**os.environ, "PYTHONUNBUFFERED": "", "TORCHELASTIC_ERROR_FILE": record}
    command = [sys.executable, "-c", hangs]
    ended = subprocess.run(command, stdout=writer, env=environ, check=False, timeout=120)
    os.close(writer)
    assert ended.returncode == AGAIN


def test_a_rank_that_loses_another_while_it_waits_for_it_is_not_reported_to_hang():
    heartbeat, told = Heartbeat(), []
    heartbeat.computing(1)
    heartbeat.computing(2)

    def lose_another():
        with watched(heartbeat, ALONE, 0.1, told.append):
            # Stands in for an exchange: it is in one of the modules that these are known by.
            StopRequest().wait(1)
            raise RuntimeError("[gloo/transport/tcp/pair.cc:1] Connection closed by peer")

    with pytest.raises(RuntimeError, match="gloo/transport"):
        lose_another()
    assert told == []


def test_a_rank_that_waits_for_an_unknown_rank_says_that_it_waits(monkeypatch):
    monkeypatch.setattr(watchdog, "_GRACE_SECONDS", 0.1)
    heartbeat, told = Heartbeat(), []
    heartbeat.computing(1)
    heartbeat.computing(2)
    request = StopRequest()

    def tell(error):
        told.append(str(error))
        request.requested = True

    with watched(heartbeat, ALONE, 0.1, tell):
        # Stands in for an exchange, as above.
        request.wait(120)
    assert "at step 2, computing" in told[0]
    assert "waits there for the others: one that is frozen cannot report it" in told[0]
