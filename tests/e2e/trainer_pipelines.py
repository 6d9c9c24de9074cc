"""Pipelines whose job is a TrainJob."""

from kfp import dsl

from kfp_pytorch.components import kserve_deploy, kserve_predict, metric_gate, train_job


@dsl.pipeline(name="by-trainer")
def by_trainer(epochs: int = 15, service_name: str = "by-trainer"):
    job = train_job(
        name="by-trainer",
        image="train",
        command=["python", "-m", "kfp_pytorch.training"],
        hyperparameters={"dataset": "digits", "model": "small_cnn", "epochs": epochs},
        num_nodes=2,
        key=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    )
    gate = metric_gate(metrics=job.outputs["metrics"], metric="accuracy", minimum=0.97)
    deployed = kserve_deploy(model=job.outputs["model"], service_name=service_name).after(gate)
    kserve_predict(model=job.outputs["model"], url=deployed.outputs["cluster_url"])
