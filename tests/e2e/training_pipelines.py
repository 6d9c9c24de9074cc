"""Pipelines whose job trains for real."""

from typing import Any

from kfp import dsl

from kfp_pytorch.components import pytorch_job

# Trains until the first checkpoint is there, and dies; from then on it trains to the end.
DIES_ONCE = """
import os, pathlib, subprocess, sys, time
folder = pathlib.Path(os.environ["KFP_PYTORCH_OUTPUT"])
first = not (folder / "died").exists()
process = subprocess.Popen([sys.executable, "-m", "kfp_pytorch.training", *sys.argv[1:]])
while first and process.poll() is None:
    time.sleep(0.01)
    if (folder / "checkpoints" / "latest").exists():
        (folder / "died").touch()
        process.terminate()
        process.wait()
        sys.exit("the first attempt dies")
sys.exit(process.wait())
"""


@dsl.pipeline(name="trained")
def trained(epochs: int = 6, args: list[Any] = [], output_uri: str = "pvc://kfp-pytorch"):  # noqa: B006
    pytorch_job(
        name="trained",
        image="train",
        command=["python", "-m", "kfp_pytorch.training"],
        args=args,
        hyperparameters={"epochs": epochs},
        output_uri=output_uri,
        key=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    )


@dsl.pipeline(name="dying")
def dying(epochs: int = 6):
    pytorch_job(
        name="dying",
        image="train",
        command=["python", "-c", DIES_ONCE],
        hyperparameters={"epochs": epochs},
        restart_policy="Never",
        key=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    ).set_retry(2)


@dsl.pipeline(name="anything")
def anything(
    name: str = "anything",
    image: str = "train",
    command: list[Any] = ["python", "-c", "pass"],  # noqa: B006
    args: list[Any] = [],  # noqa: B006
    env: dict[str, Any] = {},  # noqa: B006
    hyperparameters: dict[str, Any] = {},  # noqa: B006
    num_nodes: int = 1,
    nproc_per_node: str = "",
    memory: str = "",
    shm_size: str = "",
    output_uri: str = "pvc://kfp-pytorch",
    resume_from: str = "",
    service_account: str = "",
    labels: dict[str, Any] = {},  # noqa: B006
    start_timeout: int = 60,
    ttl_seconds: int = 3600,
    restart_policy: str = "Never",
    cleanup: str = "on_failure",
    pod_template_patch: dict[str, Any] = {},  # noqa: B006
):
    pytorch_job(
        name=name,
        image=image,
        command=command,
        args=args,
        env=env,
        hyperparameters=hyperparameters,
        num_nodes=num_nodes,
        nproc_per_node=nproc_per_node,
        memory=memory,
        shm_size=shm_size,
        output_uri=output_uri,
        resume_from=resume_from,
        service_account=service_account,
        labels=labels,
        start_timeout=start_timeout,
        ttl_seconds=ttl_seconds,
        restart_policy=restart_policy,
        cleanup=cleanup,
        pod_template_patch=pod_template_patch,
    )


@dsl.pipeline(name="elastic")
def elastic(image: str = "train", epochs: int = 10):
    pytorch_job(
        name="elastic",
        image=image,
        command=["python", "-m", "kfp_pytorch.training"],
        hyperparameters={"epochs": epochs},
        num_nodes=2,
        elastic={"min_nodes": 1, "max_nodes": 3, "rdzv_conf": {"last_call_timeout": 3}},
        key=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    )


# Plain DDP: nothing starts it but the container's command.
MEETS = """
import json, os
import torch.distributed as dist
import torch
dist.init_process_group("gloo")
ranks = torch.tensor([float(dist.get_rank())])
dist.all_reduce(ranks)
with open(os.environ["KFP_PYTORCH_TERMINATION_LOG"], "w") as file:
    json.dump({"version": 1, "status": "succeeded", "metrics": {"ranks": ranks.item()},
               "world_size": dist.get_world_size()}, file)
dist.barrier()
dist.destroy_process_group()
"""


@dsl.pipeline(name="workers-only")
def workers_only():
    pytorch_job(
        name="workers-only",
        image="train",
        command=["python", "-c", MEETS],
        num_nodes=3,
        elastic={"min_nodes": 3, "max_nodes": 3},
        key=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    )
