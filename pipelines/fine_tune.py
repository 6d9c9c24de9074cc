"""Fine-tunes a language model with LoRA, and serves it when it is good enough."""

from typing import Any

from kfp import dsl

from kfp_pytorch.components import kserve_deploy, metric_gate, train_job
from kfp_pytorch.components.descriptions import unwrapped
from kfp_pytorch.launcher.constants import DEFAULT_OUTPUT_URI, TRAINING_IMAGE
from kfp_pytorch.pipelines.steps import long_running


@dsl.pipeline(name="fine-tune")  # type: ignore[untyped-decorator] # kfp has no types
@unwrapped
def fine_tune(
    image: str = TRAINING_IMAGE,
    runtime: str = "torch-distributed",
    runtime_kind: str = "ClusterTrainingRuntime",
    model_initializer: dict[str, Any] = {},  # noqa: B006 - kfp never calls this function with it
    dataset_initializer: dict[str, Any] = {},  # noqa: B006
    num_nodes: int = 1,
    nproc_per_node: str = "",
    gpus_per_node: int = 0,
    epochs: int = 3,
    batch_size: int = 8,
    learning_rate: float = 0.0002,
    lora_rank: int = 16,
    lora_alpha: int = 32,
    max_length: int = 1024,
    seed: int = 0,
    extra_args: list[Any] = [],  # noqa: B006
    scheduling: dict[str, Any] = {},  # noqa: B006
    placement: dict[str, Any] = {},  # noqa: B006
    output_uri: str = DEFAULT_OUTPUT_URI,
    output_secret: str = "",
    resume_from: str = "",
    max_loss: float = 10.0,
    service_name: str = "",
    serving_gpus: int = 1,
    serving_service_account: str = "",
) -> None:
    """Fine-tunes a language model with LoRA in a TrainJob of Kubeflow Trainer, and serves it.

    PEFT and TRL train an adapter on what an initializer downloads; the export is the model with the
    adapter merged into it. Without initializers a tiny model is trained on sums, both made on the
    spot. The model is deployed only when its loss on held-out examples is low enough.

    Args:
        image: The training image. The default's name says how to build it: `make images`, then
            push it to a registry of yours and give that name here.
        runtime: The training runtime; with initializers kfp-pytorch-fine-tune of
            manifests/fine-tune.
        runtime_kind: ClusterTrainingRuntime, or TrainingRuntime for kfp-pytorch-fine-tune.
        model_initializer: The model to start from, as {"storage_uri": "hf://OWNER/MODEL", "secret":
            "a-secret"}; empty for a tiny one.
        dataset_initializer: The examples, as {"storage_uri": "hf://OWNER/DATA"}; empty for sums.
        num_nodes: How many pods train together.
        nproc_per_node: Processes in each pod; empty for one for each GPU, or one.
        gpus_per_node: GPUs of each pod; 0 trains on its CPUs.
        epochs: How often to go through the examples.
        batch_size: Examples in a batch of one process.
        learning_rate: The learning rate.
        lora_rank: The rank of the adapter's matrices.
        lora_alpha: The adapter's weight, which is divided by the rank.
        max_length: Tokens of an example; the rest is cut off.
        seed: The seed of weights and order.
        extra_args: Further arguments of the training program, such as ["--lora-dropout=0"]; each
            reaches it byte for byte.
        scheduling: The queue or scheduler, as {"scheduler": "kueue", "queue": "team-a"}.
        placement: Which GPUs and nodes, as {"gpus": 8, "gpu_products": ["NVIDIA-L4"]}.
        output_uri: Where checkpoints, logs and models go: pvc://CLAIM/path, s3://BUCKET/path or
            gs://BUCKET/path. A folder is made for each run.
        output_secret: A Secret with the bucket's credentials; empty for none.
        resume_from: Another job's folder to start from; empty to start afresh.
        max_loss: The loss on held-out examples above which the run fails and nothing is deployed.
        service_name: The name of the InferenceService; empty to deploy nothing.
        serving_gpus: GPUs of each predictor.
        serving_service_account: The service account whose Secrets let KServe read a bucket; empty
            for the namespace's default.
    """
    job = train_job(
        name="fine-tune",
        image=image,
        command=["torchrun", "-m", "kfp_pytorch.training.fine_tune"],
        args=extra_args,
        hyperparameters={
            "epochs": epochs,
            "batch-size": batch_size,
            "learning-rate": learning_rate,
            "lora-rank": lora_rank,
            "lora-alpha": lora_alpha,
            "max-length": max_length,
            "seed": seed,
        },
        runtime=runtime,
        runtime_kind=runtime_kind,
        model_initializer=model_initializer,
        dataset_initializer=dataset_initializer,
        num_nodes=num_nodes,
        nproc_per_node=nproc_per_node,
        gpus_per_node=gpus_per_node,
        scheduling=scheduling,
        placement=placement,
        # A large model takes a while to download.
        start_timeout=7200,
        output_uri=output_uri,
        output_secret=output_secret,
        key=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
        resume_from=resume_from,
    )
    long_running(job).set_display_name("Fine-tune")

    gate = metric_gate(metrics=job.outputs["metrics"], metric="eval_loss", maximum=max_loss)
    gate.set_display_name("Good enough?")

    with dsl.If(service_name != "", "deploy"):
        service = kserve_deploy(
            model=job.outputs["model"],
            service_name=service_name,
            model_format="huggingface",
            protocol="openai",
            gpus=serving_gpus,
            service_account=serving_service_account,
        )
        long_running(service).after(gate).set_display_name("Deploy")
