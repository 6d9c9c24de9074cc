"""Stories of two pods: entry points with the operator's environment, to the termination message."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path

import pytest
from harness.ports import free_port


@pytest.mark.slow
def test_two_pods_train_as_one_job_and_both_report_its_result(start_nodes, tmp_path):
    nodes = start_nodes(2, "--epochs=4", output=tmp_path)
    assert nodes.exit_codes() == [0, 0], nodes.output(0) + nodes.output(1)
    message = nodes.message(0)
    assert message["status"] == "succeeded"
    assert message["world_size"] == 2
    assert message["metrics"]["accuracy"] >= 0.9
    assert len(message["samples"]) >= 3
    assert nodes.message(1) == message


@pytest.mark.slow
def test_the_first_error_of_all_is_reported_by_its_pod(start_nodes, tmp_path):
    nodes = start_nodes(2, output=tmp_path, node1=["--model=resnet_of_nobody"])
    assert nodes.exit_codes() == [138, 2]
    first = nodes.message(1)["error"]
    assert first["rank"] == 1
    assert first["type"] == "ConfigError"
    assert "resnet_of_nobody" in first["message"]
    assert "small_cnn" in first["message"]
    assert "in _from_torchvision" in first["traceback"]
    assert "^^^" not in first["traceback"]
    assert nodes.message(0)["error"]["time"] > first["time"]


@pytest.mark.slow
def test_a_first_node_that_never_listens_is_given_up_with_its_address(start_nodes, tmp_path):
    late = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_RDZV_CONF": "timeout=3"}
    nodes = start_nodes(1, output=tmp_path, environ=late)
    assert nodes.exit_codes() == [1]
    assert "127.0.0.1:" in nodes.message()["error"]["message"]


@pytest.mark.slow
def test_a_node_that_is_seconds_ahead_of_the_first_waits_for_it(start_nodes, tmp_path):
    port = str(free_port())
    both = {"WORLD_SIZE": "2", "PET_NNODES": "2", "MASTER_PORT": port, "PET_MASTER_PORT": port}

    def start(node):
        own = {"RANK": str(node), "PET_NODE_RANK": str(node)}
        return start_nodes(1, "--epochs=1", output=tmp_path, environ=both | own)

    ahead = start(1)
    (entry,) = ahead.processes
    agents = Path(f"/proc/{entry.pid}/task/{entry.pid}/children")
    while not agents.read_text().split():
        assert entry.poll() is None
    agent = Path(f"/proc/{only_child(entry.pid)}/maps")
    # The first node has yet to import torch, which takes seconds.
    while "libtorch_python" not in agent.read_text():
        assert entry.poll() is None
        time.sleep(0.02)
    first = start(0)
    assert (first.exit_codes(), ahead.exit_codes()) == ([0], [0])
    assert ahead.message() == first.message()


@pytest.mark.slow
def test_sigterm_to_one_pod_ends_both_with_143_after_a_checkpoint(start_nodes, tmp_path):
    nodes = start_nodes(2, "--epochs=2000", output=tmp_path)
    nodes.await_output("step=10 ")
    nodes.processes[1].send_signal(signal.SIGTERM)
    assert nodes.exit_codes() == [143, 143]
    assert nodes.message(0)["error"]["type"] == "Terminated"
    (latest,) = (tmp_path / "checkpoints").glob("latest")
    assert (tmp_path / "checkpoints" / latest.read_text() / "meta.json").exists()


def only_child(pid):
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


@pytest.mark.slow
def test_a_rank_whose_agent_is_killed_saves_and_ends(start_nodes, tmp_path):
    nodes = start_nodes(1, "--epochs=2000", output=tmp_path)
    nodes.await_output("step=10 ")
    agent = only_child(nodes.processes[0].pid)
    rank = os.pidfd_open(only_child(agent))
    os.kill(agent, signal.SIGKILL)
    assert nodes.exit_codes() == [137]
    assert "the agent was ended by SIGKILL" in nodes.message()["error"]["message"]
    # The rank leaves after the entry point, of which it knows nothing.
    assert select.select([rank], [], [], 60)[0]
    os.close(rank)
    assert "asked to stop at step" in nodes.output()
