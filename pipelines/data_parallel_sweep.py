"""Trains an image classifier on several sizes of a job, and compares how training scales."""

from typing import Any

from kfp import dsl

from kfp_pytorch.components import compare_jobs, pytorch_job
from kfp_pytorch.components.descriptions import unwrapped
from kfp_pytorch.launcher.constants import DEFAULT_OUTPUT_URI, TRAINING_IMAGE
from kfp_pytorch.pipelines.steps import long_running


# A part of a loop's item reaches a dict of hyperparameters through a pipeline of its own alone.
@dsl.pipeline(name="train-one-size")  # type: ignore[untyped-decorator] # kfp has no types
def train_one_size(
    image: str,
    num_nodes: int,
    nproc_per_node: int,
    gpus_per_node: int,
    batch_size: int,
    dataset: str,
    data_dir: str,
    model: str,
    epochs: int,
    learning_rate: float,
    seed: int,
    extra_args: list[Any],
    output_uri: str,
    output_secret: str,
    key: str,
) -> dsl.Model:
    """Trains with one of the sizes. Returns the model."""
    job = pytorch_job(
        name="train",
        image=image,
        command=["python", "-m", "kfp_pytorch.training"],
        args=extra_args,
        hyperparameters={
            "dataset": dataset,
            "data-dir": data_dir,
            "model": model,
            "epochs": epochs,
            "batch-size": batch_size,
            "lr": learning_rate,
            "seed": seed,
        },
        num_nodes=num_nodes,
        nproc_per_node=nproc_per_node,
        gpus_per_node=gpus_per_node,
        # What cannot work ends with a code below 128, and is not tried again.
        restart_policy="ExitCode",
        output_uri=output_uri,
        output_secret=output_secret,
        key=key,
    )
    long_running(job).set_display_name("Train")
    return job.outputs["model"]


@dsl.pipeline(name="data-parallel-sweep")  # type: ignore[untyped-decorator] # kfp has no types
@unwrapped
def data_parallel_sweep(
    image: str = TRAINING_IMAGE,
    sizes: list[dict[str, int]] = [  # noqa: B006 - kfp reads it and never calls this function with it
        {"num_nodes": 1, "nproc_per_node": 1, "gpus_per_node": 0, "batch_size": 64},
        {"num_nodes": 2, "nproc_per_node": 1, "gpus_per_node": 0, "batch_size": 64},
    ],
    size: str = "processes",
    group_by: list[Any] = [],  # noqa: B006
    dataset: str = "digits",
    data_dir: str = "",
    model: str = "small_cnn",
    epochs: int = 15,
    learning_rate: float = 0.05,
    seed: int = 0,
    extra_args: list[Any] = [],  # noqa: B006
    output_uri: str = DEFAULT_OUTPUT_URI,
    output_secret: str = "",
) -> None:
    """Trains an image classifier on several sizes of a job, and compares how training scales.

    The jobs run one after the other, so that none slows another. A table and charts then show
    throughput, scaling efficiency, loss and accuracy against the size.

    Args:
        image: The training image. The default's name says how to build it: `make images`, then
            push it to a registry of yours and give that name here.
        sizes: The sizes, each with num_nodes, nproc_per_node, gpus_per_node and batch_size, which
            is that of one process.
        size: What the jobs are compared by: processes, nodes or batch-size.
        group_by: Hyperparameters, such as ["batch-size"], by which jobs are compared apart from
            each other.
        dataset: The data: digits or synthetic, which need no files, or fashion-mnist, imagefolder
            or shards, in data_dir.
        data_dir: The folder, in the training container, of data that the image does not have.
        model: small_cnn, or the name of a classification model of torchvision.
        epochs: How often to go through the data.
        learning_rate: The learning rate of one process; training scales it by the processes.
        seed: The seed of weights and order.
        extra_args: Further arguments of the training program, such as ["--label-smoothing=0.1"];
            each reaches it byte for byte.
        output_uri: Where checkpoints, logs and models go: pvc://CLAIM/path, s3://BUCKET/path or
            gs://BUCKET/path. A folder is made for each run.
        output_secret: A Secret with the bucket's credentials; empty for none.
    """
    with dsl.ParallelFor(sizes, name="sizes", parallelism=1) as one:
        trained = train_one_size(
            image=image,
            num_nodes=one.num_nodes,
            nproc_per_node=one.nproc_per_node,
            gpus_per_node=one.gpus_per_node,
            batch_size=one.batch_size,
            dataset=dataset,
            data_dir=data_dir,
            model=model,
            epochs=epochs,
            learning_rate=learning_rate,
            seed=seed,
            extra_args=extra_args,
            output_uri=output_uri,
            output_secret=output_secret,
            key=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
        )
    scaling = compare_jobs(models=dsl.Collected(trained.output), size=size, group_by=group_by)
    scaling.set_display_name("Compare the sizes")
