"""The failure of a rank on another node, from pods with agents to the termination message."""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import signal
import time
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[1] / "programs"
FAULTS = runpy.run_path(str(PROGRAMS / "faults.py"))
GONE = 138
# Every Python process imports this file at its start.
HOOK = """
import os, runpy
if "LOCAL_RANK" in os.environ:
    runpy.run_path({faults!r})["install"]()
    with open({folder!r} + "/" + os.environ["RANK"] + ".pid", "w") as file:
        file.write(str(os.getpid()))
"""


@pytest.fixture
def start_pods(start_nodes, tmp_path):
    """Starts two ranks, waits until they are in the middle of training, and returns their pids."""
    names = {"faults": str(PROGRAMS / "faults.py"), "folder": str(tmp_path)}
    (tmp_path / "sitecustomize.py").write_text(HOOK.format(**names))
    pids = []

    def start(pods, ranks_each, *arguments, **environ):
        nodes = start_nodes(
            pods,
            *("--epochs=20000", "--log-every=5", "--rank-timeout=3", *arguments),
            output=tmp_path / "job",
            environ={"PYTHONPATH": str(tmp_path), "PET_NPROC_PER_NODE": str(ranks_each)} | environ,
        )
        # By then each has told where it is, which it does every 0.3 s.
        nodes.await_output("step=200 ")
        pids.extend(int((tmp_path / f"{rank}.pid").read_text()) for rank in (0, 1))
        return nodes, pids

    yield start
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "code", "kind", "words"),
    [
        (FAULTS["RAISE"], 1, "ValueError", "a fault of the test's own"),
        (FAULTS["LEAVE"], 3, "ExitCode", "exit code 3"),
        (FAULTS["HANG"], GONE, "RankHungError", "no progress for 3 seconds"),
        (signal.SIGKILL, 137, "SIGKILL", "out of memory is the usual reason"),
        (signal.SIGSEGV, 139, "SIGSEGV", "ended by SIGSEGV"),
    ],
    ids=["exception", "os._exit", "hang", "SIGKILL", "SIGSEGV"],
)
def test_the_second_nodes_rank_ends_both_pods_and_its_own_pod_reports_first(
    start_pods, fault, code, kind, words
):
    nodes, pids = start_pods(2, 1)
    started = time.time()
    os.kill(pids[1], fault)
    assert nodes.exit_codes() == [GONE, code], nodes.output(0) + nodes.output(1)
    first, second = nodes.message(1)["error"], nodes.message(0)["error"]
    assert (first["rank"], first["type"]) == (1, kind)
    assert words in first["message"]
    assert second["type"] == "PeerLostError"
    assert first["time"] <= second["time"]
    # Long before an exchange would time out.
    assert second["time"] - started < 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "code", "kind"),
    [
        (FAULTS["LEAVE"], 3, "ExitCode"),
        (signal.SIGKILL, 137, "SIGKILL"),
        (FAULTS["HANG"], GONE, "RankHungError"),
        (signal.SIGSTOP, GONE, "RankHungError"),
    ],
    ids=["os._exit", "SIGKILL", "hang", "frozen"],
)
def test_of_two_ranks_in_one_pod_the_one_that_failed_is_reported(start_pods, fault, code, kind):
    nodes, pids = start_pods(1, 2)
    os.kill(pids[1], fault)
    assert nodes.exit_codes() == [code], nodes.output(0)
    error = nodes.message(0)["error"]
    assert error["type"] == kind
    assert error["rank"] == 1 or "rank 1 makes no progress" in error["message"]


# With the operator's environment, and with none, where torchrun makes a rendezvous of its own.
@pytest.mark.slow
@pytest.mark.parametrize("address", ["127.0.0.1", ""], ids=["operator", "alone"])
def test_ranks_that_torchrun_starts_again_resume_from_the_last_step(start_pods, tmp_path, address):
    alone = {} if address else dict.fromkeys(("PET_MASTER_ADDR", "PET_MASTER_PORT"), "")
    nodes, pids = start_pods(1, 2, "--resume=never", PET_MAX_RESTARTS="1", **alone)
    os.kill(pids[1], signal.SIGKILL)
    nodes.await_output("going on from")
    saved = int(re.search(r"saved step (\d+) from the memory of rank 0", nodes.output())[1])
    assert f"at step {saved}\n" in nodes.output()
    nodes.await_output(f" step={(saved // 5 + 2) * 5} train_loss")
    nodes.processes[0].terminate()
    assert nodes.exit_codes() == [143]
