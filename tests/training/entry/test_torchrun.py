from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from kfp_pytorch.training.entry import agent
from kfp_pytorch.training.entry.torchrun import agent_arguments, threads_per_process
from kfp_pytorch.training.errors import ConfigError
from kfp_pytorch.training.resources import usable_cores

OPERATOR = {
    "MASTER_ADDR": "job-master-0",
    "PET_MASTER_ADDR": "job-master-0",
    "MASTER_PORT": "23456",
    "PET_MASTER_PORT": "23456",
    "WORLD_SIZE": "8",
    "RANK": "1",
    "PET_NODE_RANK": "1",
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "4",
}
STATIC = [
    "--nnodes=2",
    "--node-rank=1",
    "--master-addr=job-master-0",
    "--master-port=23456",
]


def test_the_operators_rank_is_a_node_and_its_world_size_counts_processes():
    assert agent_arguments(OPERATOR) == STATIC


def test_an_older_operator_that_sets_no_pet_names_means_one_process_a_node():
    old = {"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456", "WORLD_SIZE": "2", "RANK": "1"}
    assert agent_arguments(old) == STATIC


def test_a_trainjob_sets_pet_names_only():
    trainjob = {name: value for name, value in OPERATOR.items() if name.startswith("PET_")}
    assert agent_arguments(trainjob) == STATIC


def test_no_environment_is_one_process_alone():
    assert agent_arguments({}) == ["--standalone"]


def test_an_elastic_job_is_left_to_torchrun():
    elastic = {
        "PET_NNODES": "1:3",
        "PET_RDZV_ENDPOINT": "job-worker-0:23456",
        "PET_RDZV_BACKEND": "c10d",
        "PET_MAX_RESTARTS": "3",
    }
    assert agent_arguments(elastic) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"RANK": "8"}, "RANK=8 must be below WORLD_SIZE=8"),
        ({"RANK": "minus one"}, "RANK='minus one' is not a number"),
        ({"MASTER_PORT": ""}, "MASTER_ADDR is set but MASTER_PORT is not"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT='http' is not a number"),
        ({"PET_MASTER_PORT": ""}, "PET_MASTER_ADDR is set but PET_MASTER_PORT is not"),
        ({"PET_MASTER_ADDR": " "}, "PET_MASTER_PORT is set but PET_MASTER_ADDR is not"),
        ({"WORLD_SIZE": ""}, "RANK=1 is set but WORLD_SIZE is not"),
        ({"PET_NODE_RANK": "2"}, "node rank 2 must be below the number of nodes 2"),
        ({"PET_NNODES": "1:4"}, "PET_RDZV_ENDPOINT is not set"),
        ({"PET_RDZV_BACKEND": "c10d"}, "PET_RDZV_BACKEND=c10d, and PET_RDZV_ENDPOINT does not"),
        ({"TORCHELASTIC_RUN_ID": "1"}, "started by torchrun already"),
        ({"RANK": "²"}, "RANK='²' is not a number from 0"),
        ({"PET_MASTER_PORT": "99999"}, "PET_MASTER_PORT='99999' is not a number from 1 to 65535"),
        ({"PET_NPROC_PER_NODE": "0"}, "PET_NPROC_PER_NODE='0' is not a number from 1 or auto, cpu"),
        ({"PET_NPROC_PER_NODE": "all"}, "PET_NPROC_PER_NODE='all' is not a number from 1 or auto"),
        ({"PET_NNODES": "0"}, "PET_NNODES='0' is not a number from 1"),
        ({"PET_NNODES": "3:2"}, "PET_NNODES='3:2' is no range of nodes; write MIN:MAX"),
        ({"PET_MAX_RESTARTS": "many"}, "PET_MAX_RESTARTS='many' is not a number from 0"),
        ({"PET_RDZV_CONF": "a=1,timeout=1h"}, "has 'timeout=1h'; write whole seconds"),
    ],
)
def test_an_inconsistent_environment_is_refused_at_once(change, words):
    with pytest.raises(ConfigError, match=words):
        agent_arguments({**OPERATOR, **change})


def test_a_rendezvous_on_etcd_without_its_client_is_refused_at_once(monkeypatch):
    elastic = {"PET_NNODES": "1:3", "PET_RDZV_ENDPOINT": "etcd:2379", "PET_RDZV_BACKEND": "etcd-v2"}
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"etcd-v2, and .* install kfp-pytorch\[etcd\]"):
        agent_arguments(elastic)


def test_the_place_of_a_rendezvous_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("PET_RDZV_ENDPOINT", "etcd:2379")
    monkeypatch.setenv("PET_RDZV_BACKEND", "etcd-v2")
    failure = agent._of_agent(ConnectionError("the connection has failed"), [])
    assert failure.message.endswith("(the rendezvous, etcd-v2, was expected at etcd:2379)")


def test_processes_of_one_machine_share_its_cores():
    cores = usable_cores()
    alone = {"PET_NPROC_PER_NODE": "1", "PET_NNODES": "2", "PET_MASTER_ADDR": "job-master-0"}
    assert threads_per_process({}) == cores
    assert threads_per_process(alone) == cores
    assert threads_per_process({**alone, "PET_MASTER_ADDR": "127.0.0.1"}) == max(1, cores // 2)
    assert threads_per_process({**alone, "PET_MASTER_ADDR": "::1"}) == max(1, cores // 2)
    elastic = {"PET_NPROC_PER_NODE": "1", "PET_NNODES": "1:2", "PET_RDZV_ENDPOINT": "[::1]:29400"}
    assert threads_per_process(elastic) == max(1, cores // 2)
    assert threads_per_process({**alone, "PET_NPROC_PER_NODE": str(cores)}) == 1
    assert threads_per_process({**alone, "PET_NPROC_PER_NODE": "auto"}) == 1


@pytest.mark.parametrize(
    ("arguments", "environ", "words"),
    [
        (["--dataset=mnist3d"], {}, "digits, fashion-mnist"),
        (["--epoch=3"], {}, "--epoch=3"),
        (["--lr=nan"], {}, "--lr is nan; it must be above 0"),
        ([], {"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 must be below WORLD_SIZE=2"),
        ([], {"KFP_PYTORCH_OUTPUT": "minio://bucket/key"}, "AWS_ENDPOINT_URL"),
        ([], {"KFP_PYTORCH_OUTPUT": "pvc://claim/key"}, "mounted"),
        ([], {"KFP_PYTORCH_OUTPUT": "s3://"}, "'s3://' names no bucket; write s3://BUCKET/KEY"),
        (["--output=s3:/bucket/key"], {}, "write two slashes, as in s3://BUCKET/KEY"),
        (["--output=file://host/key"], {}, "write three slashes, as in file:///PATH"),
        (["--output=s3://bucket/run*"], {}, "*, ? and [ are patterns to the clients"),
        (["--dataset=shards", "--data-dir=s3://"], {}, "'s3://', which names no place"),
        (["--model=lm-tiny", "--text-files", "/no/text"], {}, "'/no/text', and there is no such"),
        (["--model=lm-tiny", "--parallelism=fsdp3"], {}, "'fsdp3' is none of"),
    ],
)
def test_what_cannot_work_is_reported_in_the_message_without_importing_torch(
    tmp_path, arguments, environ, words
):
    termination = tmp_path / "termination"
    termination.touch()
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    inherited = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "kfp_pytorch.training", *arguments],
        env={**inherited, "KFP_PYTORCH_TERMINATION_LOG": str(termination), **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert words in done.stderr
    message = json.loads(termination.read_text())
    assert message["status"] == "failed"
    assert words in message["error"]["message"]
