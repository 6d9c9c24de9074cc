"""Stories of two pods: entry points with the operator's environment, to the termination message."""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import time
import zlib
from pathlib import Path

import pytest
from harness.ports import free_port
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

TERMINATION_FIELDS = {"version", "status", "metrics", "world_size", "export", "curves", "samples"}


@pytest.fixture(scope="module")
def finished(start_nodes, tmp_path_factory):
    output = tmp_path_factory.mktemp("job")
    nodes = start_nodes(2, "--epochs=4", output=output)
    assert nodes.exit_codes() == [0, 0], nodes.output(0) + nodes.output(1)
    return nodes, output


def test_two_pods_train_as_one_job_and_both_tell_its_whole_result(finished):
    nodes, _output = finished
    message = nodes.message(0)
    assert set(message) == TERMINATION_FIELDS
    assert message["status"] == "succeeded"
    assert message["world_size"] == 2
    assert message["metrics"]["accuracy"] >= 0.9
    assert len(message["samples"]) >= 3
    assert nodes.message(1) == message


def test_the_exported_program_answers_the_samples_of_the_message(finished):
    import torch

    nodes, output = finished
    program = torch.export.load(output / "export" / "model.pt2").module()
    samples = nodes.message()["samples"]
    images = [
        torch.tensor(list(zlib.decompress(base64.b64decode(sample["packed"])))).view(
            sample["shape"]
        )
        for sample in samples
    ]
    logits = program(torch.stack(images).float())
    assert logits.argmax(dim=1).tolist() == [sample["prediction"] for sample in samples]


def test_one_writer_told_tensorboard_each_scalar_once(finished):
    _nodes, output = finished
    assert len(list((output / "tensorboard").iterdir())) == 1
    events = EventAccumulator(str(output / "tensorboard"))
    events.Reload()
    curves = json.loads((output / "metrics.json").read_text())["curves"]
    for name, points in curves.items():
        assert [event.step for event in events.Scalars(name)] == [step for step, _ in points]
    (run,) = events.Tensors("run/text_summary")
    assert b"| world_size | `2` |" in run.tensor_proto.string_val[0]
    assert events.Images("train_images")


def test_a_report_is_one_line_of_names_and_values(finished):
    nodes, _output = finished
    reports = [line for line in nodes.output().splitlines() if " accuracy=" in line]
    assert len(reports) == 4
    for line in reports:
        names = [pair.partition("=")[0] for pair in line.split()]
        assert names == ["epoch", "step", "loss", "accuracy"]
        assert all(float(pair.partition("=")[2]) >= 0 for pair in line.split())
    assert " accuracy=" not in nodes.output(1)


@pytest.mark.slow
def test_the_first_error_of_all_is_told_by_the_pod_that_it_came_from(start_nodes, tmp_path):
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
def test_a_rank_whose_agent_is_killed_saves_and_leaves_and_does_not_train_on(start_nodes, tmp_path):
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
