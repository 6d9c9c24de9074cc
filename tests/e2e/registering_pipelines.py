"""A model that is registered before it is deployed."""

from kfp import dsl

from kfp_pytorch.components import kserve_deploy, metric_gate, pytorch_job, register_model

LABEL = "modelregistry.kubeflow.org"


@dsl.pipeline(name="registering")
def registering(image: str, registry_url: str, mlflow_tracking_uri: str):
    job = pytorch_job(
        image=image,
        name="digits",
        command=["python", "-m", "kfp_pytorch.training"],
        hyperparameters={"dataset": "digits", "epochs": 1},
        key=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    )
    gate = metric_gate(metrics=job.outputs["metrics"], metric="accuracy", minimum=0.1)
    registered = register_model(
        model=job.outputs["model"],
        model_name="digits",
        registry_url=registry_url,
        mlflow_tracking_uri=mlflow_tracking_uri,
        run_name=dsl.PIPELINE_JOB_NAME_PLACEHOLDER,
    ).after(gate)
    outputs = registered.outputs
    kserve_deploy(
        model=job.outputs["model"],
        service_name="registered",
        labels={
            f"{LABEL}/registered-model-id": outputs["registered_model_id"],
            f"{LABEL}/model-version-id": outputs["model_version_id"],
        },
    )
