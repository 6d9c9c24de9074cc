"""Trains an image classifier, serves it when it is good enough, and checks what it answers."""

from typing import Any

from kfp import dsl

from kfp_pytorch.components import pytorch_job, tensorboard
from kfp_pytorch.components.descriptions import unwrapped
from kfp_pytorch.launcher.constants import DEFAULT_OUTPUT_URI, TRAINING_IMAGE
from kfp_pytorch.pipelines.steps import long_running, serve_if_good


@dsl.pipeline(name="train-and-serve")  # type: ignore[untyped-decorator] # kfp has no types
@unwrapped
def train_and_serve(
    image: str = TRAINING_IMAGE,
    num_nodes: int = 2,
    gpus_per_node: int = 0,
    dataset: str = "digits",
    data_dir: str = "",
    model: str = "small_cnn",
    epochs: int = 15,
    batch_size: int = 64,
    learning_rate: float = 0.05,
    seed: int = 0,
    extra_args: list[Any] = [],  # noqa: B006 - kfp reads it and never calls this function with it
    output_uri: str = DEFAULT_OUTPUT_URI,
    output_secret: str = "",
    resume_from: str = "",
    min_accuracy: float = 0.97,
    service_name: str = "image-classifier",
    serving_service_account: str = "",
) -> None:
    """Trains an image classifier on several nodes and serves it.

    TensorBoard is opened before training starts. The model is deployed only when its accuracy on
    held-out images is good enough, and the run succeeds only when the deployed model answers
    held-out images as the trained one did.

    Args:
        image: The training image. The default's name says how to build it: `make images`, then
            push it to a registry of yours and give that name here.
        num_nodes: How many pods train together.
        gpus_per_node: GPUs of each pod; 0 trains on its CPUs.
        dataset: The data: digits or synthetic, which need no files, or fashion-mnist, imagefolder
            or shards, in data_dir.
        data_dir: The folder, in the training container, of data that the image does not have.
        model: small_cnn, or the name of a classification model of torchvision.
        epochs: How often to go through the data.
        batch_size: Images in a batch of one process; the global batch is this times the processes.
        learning_rate: The learning rate of one process; training scales it by the processes.
        seed: The seed of weights and order.
        extra_args: Further arguments of the training program, such as ["--label-smoothing=0.1"];
            each reaches it byte for byte.
        output_uri: Where checkpoints, logs and models go: pvc://CLAIM/path, s3://BUCKET/path or
            gs://BUCKET/path. A folder is made for each run.
        output_secret: A Secret with the bucket's credentials; empty for none.
        resume_from: Another job's folder to start from; empty to start afresh.
        min_accuracy: The accuracy on held-out images below which nothing is deployed, from 0 to 1.
        service_name: The name of the InferenceService; a later run of the same name updates it.
        serving_service_account: The service account whose Secrets let KServe read a bucket; empty
            for the namespace's default.
    """
    run = dsl.PIPELINE_JOB_ID_PLACEHOLDER
    view = tensorboard(output_uri=output_uri, key=run, image=image, output_secret=output_secret)
    view.set_display_name("Open TensorBoard")

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
        gpus_per_node=gpus_per_node,
        # What cannot work ends with a code below 128, and is not tried again.
        restart_policy="ExitCode",
        output_uri=output_uri,
        output_secret=output_secret,
        key=run,
        resume_from=resume_from,
    )
    long_running(job).after(view).set_display_name("Train")

    serve_if_good(job, min_accuracy, service_name, serving_service_account)
