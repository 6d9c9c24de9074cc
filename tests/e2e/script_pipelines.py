"""Pipelines that run scripts of others."""

from typing import Any

from kfp import dsl

from kfp_pytorch.components import kserve_deploy, kserve_predict, pytorch_job


@dsl.pipeline(name="torch-scripts")
def torch_scripts(saves_to_out: list[Any], only_prints: list[Any]):
    key = dsl.PIPELINE_JOB_ID_PLACEHOLDER
    pytorch_job(name="saves-to-out", image="own", command=saves_to_out, key=key)
    pytorch_job(name="only-prints", image="own", command=only_prints, key=key)


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
