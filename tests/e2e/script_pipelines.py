"""Pipelines that run scripts of others."""

from typing import Any

from kfp import dsl

from kfp_pytorch.components import kserve_deploy, kserve_predict, metric_gate, pytorch_job

# 12 curves of 70 epochs, and further metrics.
REPORT = """
import os
from kfp_pytorch.training import script
for epoch in range(70):
    script.report({f"curve_{n}": 1 / (epoch + n + 3) for n in range(12)}, epoch + 1)
script.report({f"metric_{n:03}": n / 7 for n in range(int(os.environ["MORE"]))}, 70)
"""
EXPORT = """
import os, pathlib, torch
from kfp_pytorch.training import script
script.export(torch.nn.Linear(2, 2), torch.zeros(1, 2))
file = pathlib.Path(script.folder(), "export", os.environ["FILE"])
file.write_bytes(b"other") if os.environ["CHANGE"] == "true" else file.unlink()
"""


@dsl.pipeline(name="own-script")
def own_script(
    name: str,
    command: list[Any],
    args: list[Any] = [],  # noqa: B006
    num_nodes: int = 1,
    nproc_per_node: str = "",
):
    pytorch_job(
        name=name,
        image="own",
        command=command,
        args=args,
        num_nodes=num_nodes,
        nproc_per_node=nproc_per_node,
        key=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    )


@dsl.pipeline(name="served-script")
def served_script(
    name: str,
    command: list[Any],
    args: list[Any] = [],  # noqa: B006
    num_nodes: int = 1,
    nproc_per_node: str = "",
):
    job = pytorch_job(
        name=name,
        image="own",
        command=command,
        args=args,
        num_nodes=num_nodes,
        nproc_per_node=nproc_per_node,
        key=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    )
    service = kserve_deploy(model=job.outputs["model"], service_name="own-script")
    kserve_predict(url=service.outputs["cluster_url"], model=job.outputs["model"])


@dsl.pipeline(name="reporting")
def reporting(metric: str, more: int = 0):
    job = pytorch_job(
        name="reporting",
        image="own",
        command=["python", "-c", REPORT],
        env={"MORE": more},
        key=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    )
    metric_gate(metrics=job.outputs["metrics"], metric=metric, minimum=0)


@dsl.pipeline(name="silently-gated")
def silently_gated():
    job = pytorch_job(name="silent", image="own", command=["python", "-c", "print('done')"])
    metric_gate(metrics=job.outputs["metrics"], minimum=0.5)


@dsl.pipeline(name="exporting")
def exporting(file: str, change: bool):
    pytorch_job(
        name="exporting",
        image="own",
        command=["python", "-c", EXPORT],
        env={"FILE": file, "CHANGE": change},
        restart_policy="Never",
        key=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    )
