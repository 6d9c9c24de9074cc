"""Trains an image classifier on nodes that may be taken away, and serves it if it is good."""

from typing import Any

from kfp import dsl

from kfp_pytorch.components import pytorch_job
from kfp_pytorch.components.descriptions import unwrapped
from kfp_pytorch.launcher.constants import DEFAULT_OUTPUT_URI, TRAINING_IMAGE
from kfp_pytorch.pipelines.steps import long_running, serve_if_good

# The taints that GKE and AKS give their spot nodes.
SPOT_TAINTS = [
    {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true"},
    {"key": "kubernetes.azure.com/scalesetpriority", "operator": "Equal", "value": "spot"},
]


@dsl.pipeline(name="elastic-train")  # type: ignore[untyped-decorator] # kfp has no types
@unwrapped
def elastic_train(
    image: str = TRAINING_IMAGE,
    num_nodes: int = 2,
    min_nodes: int = 1,
    max_nodes: int = 4,
    gpus_per_node: int = 0,
    max_restarts: int = 100,
    node_selector: dict[str, Any] = {},  # noqa: B006 - kfp never calls this function with it
    tolerations: list[Any] = SPOT_TAINTS,
    placement: dict[str, Any] = {},  # noqa: B006
    scheduling: dict[str, Any] = {},  # noqa: B006
    dataset: str = "digits",
    data_dir: str = "",
    model: str = "small_cnn",
    epochs: int = 15,
    batch_size: int = 64,
    learning_rate: float = 0.05,
    seed: int = 0,
    checkpoint_every_steps: int = 50,
    extra_args: list[Any] = [],  # noqa: B006
    output_uri: str = DEFAULT_OUTPUT_URI,
    output_secret: str = "",
    resume_from: str = "",
    min_accuracy: float = 0.97,
    service_name: str = "image-classifier",
    serving_service_account: str = "",
) -> None:
    """Trains an image classifier on spot nodes and serves it.

    The job goes on when it loses nodes and grows when it gets some. Where it loses all of them, or
    fails, it starts again from its newest checkpoint. The model is deployed only when its accuracy
    on held-out images is good enough, and must then answer held-out images as in training.

    Args:
        image: The training image. The default's name says how to build it: `make images`, then
            push it to a registry of yours and give that name here.
        num_nodes: How many pods training starts with.
        min_nodes: With how many it goes on when it loses some.
        max_nodes: To how many it may grow.
        gpus_per_node: GPUs of each pod; 0 trains on its CPUs.
        max_restarts: How often training may start again after it lost a node or a process.
        node_selector: Labels of the spot nodes, such as {"cloud.google.com/gke-spot": "true"};
            empty lets pods run on any node.
        tolerations: The taints of the spot nodes, as Kubernetes' objects.
        placement: Which GPUs and nodes, as {"gpus": 8, "gpu_products": ["NVIDIA-L4"]}.
        scheduling: The queue or scheduler, as {"scheduler": "kueue", "queue": "team-a"}.
        dataset: The data: digits or synthetic, which need no files, or fashion-mnist, imagefolder
            or shards, in data_dir.
        data_dir: The folder, in the training container, of data that the image does not have.
        model: small_cnn, or the name of a classification model of torchvision.
        epochs: How often to go through the data.
        batch_size: Images in a batch of one process; the global batch is this times the processes.
        learning_rate: The learning rate of one process; training scales it by the processes.
        seed: The seed of weights and order.
        checkpoint_every_steps: Steps between two checkpoints, beside those after epochs.
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
            "checkpoint-every-steps": checkpoint_every_steps,
        },
        num_nodes=num_nodes,
        gpus_per_node=gpus_per_node,
        elastic={"min_nodes": min_nodes, "max_nodes": max_nodes, "max_restarts": max_restarts},
        backoff_limit=max_restarts,
        # What cannot work ends with a code below 128, and is not tried again.
        restart_policy="ExitCode",
        node_selector=node_selector,
        tolerations=tolerations,
        placement=placement,
        scheduling=scheduling,
        output_uri=output_uri,
        output_secret=output_secret,
        key=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
        resume_from=resume_from,
    )
    # A job whose first worker is lost may fail; the next one resumes in the same folder.
    long_running(job).set_retry(2).set_display_name("Train")

    serve_if_good(job, min_accuracy, service_name, serving_service_account)
