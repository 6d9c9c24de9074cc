"""Trains an image classifier and serves it beside the last one, until it has proved itself."""

from typing import Any

from kfp import dsl

from kfp_pytorch.components import canary_check, kserve_deploy, kserve_rollout, pytorch_job
from kfp_pytorch.components.descriptions import unwrapped
from kfp_pytorch.launcher.constants import DEFAULT_OUTPUT_URI, TRAINING_IMAGE
from kfp_pytorch.pipelines.steps import long_running


@dsl.pipeline(name="canary-rollout")  # type: ignore[untyped-decorator] # kfp has no types
@unwrapped
def canary_rollout(
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
    service_name: str = "image-classifier",
    serving_service_account: str = "",
    deployment_mode: str = "",
    canary_traffic_percent: int = 0,
    request_count: int = 200,
    max_error_rate: float = 0.0,
    latency_tolerance: float = 0.05,
    max_accuracy_drop: float = 0.05,
) -> None:
    """Trains an image classifier and promotes it if it serves as well as the one before.

    The new model is deployed as a canary. Real requests go to it and to the model that serves; by
    errors, latencies and answers it gets all of the traffic, or is taken back. The first model of a
    service gets all of the traffic at once.

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
        service_name: The name of the InferenceService; a later run of the same name brings its next
            revision.
        serving_service_account: The service account whose Secrets let KServe read a bucket; empty
            for the namespace's default.
        deployment_mode: Standard or Knative; empty for the cluster's default.
        canary_traffic_percent: Percentage of the traffic that the canary gets while it is checked;
            in Standard mode 0 alone.
        request_count: How many requests the canary and the model that serves get each.
        max_error_rate: The share of the canary's requests that may fail, from 0 to 1.
        latency_tolerance: Seconds by which the canary may be slower, in whatever relation to the
            model that serves.
        max_accuracy_drop: How much lower the canary's share of right answers may be, from 0 to 1.
    """
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
        key=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
        resume_from=resume_from,
    )
    long_running(job).set_display_name("Train")

    service = kserve_deploy(
        model=job.outputs["model"],
        service_name=service_name,
        service_account=serving_service_account,
        deployment_mode=deployment_mode,
        canary_traffic_percent=canary_traffic_percent,
    )
    long_running(service).set_display_name("Deploy as a canary")

    check = canary_check(
        canary_url=service.outputs["canary_url"],
        stable_url=service.outputs["stable_url"],
        model=job.outputs["model"],
        request_count=request_count,
        max_error_rate=max_error_rate,
        latency_tolerance=latency_tolerance,
        max_accuracy_drop=max_accuracy_drop,
    )
    check.set_display_name("Compare with the stable revision")

    with dsl.If(check.outputs["decision"] == "promote", "promote"):
        promotion = kserve_rollout(
            service_name=service.outputs["service_name"],
            action="promote",
            revision=service.outputs["revision"],
        )
        long_running(promotion).set_display_name("Promote")
    with dsl.Else("roll-back"):
        rollback = kserve_rollout(
            service_name=service.outputs["service_name"],
            action="rollback",
            revision=service.outputs["revision"],
        )
        long_running(rollback).set_display_name("Roll back")
