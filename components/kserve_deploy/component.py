"""Serves a model with KServe."""

# ruff: noqa: B006 - kfp reads the defaults

from typing import Any, NamedTuple

from kfp.dsl import Input, Model

from kfp_pytorch.components.caching import uncached
from kfp_pytorch.components.embedding import launcher_component


@uncached
@launcher_component
def kserve_deploy(
    model: Input[Model],
    service_name: str,
    namespace: str = "",
    model_format: str = "",
    runtime: str = "",
    protocol: str = "v1",
    deployment_mode: str = "",
    cpu: str = "",
    memory: str = "",
    gpus: int = 0,
    gpu_resource: str = "nvidia.com/gpu",
    env: dict[str, Any] = {},
    min_replicas: int = 1,
    max_replicas: int = 0,
    canary_traffic_percent: int = -1,
    request_timeout: int = 0,
    service_account: str = "",
    storage_key: str = "",
    node_selector: dict[str, Any] = {},
    tolerations: list[Any] = [],
    labels: dict[str, Any] = {},
    annotations: dict[str, Any] = {},
    timeout: int = 900,
) -> NamedTuple(  # type: ignore[valid-type]
    "Outputs",
    url=str,
    cluster_url=str,
    service_name=str,
    revision=str,
):
    """Serves a model with KServe and waits until the new revision answers.

    Creates the InferenceService or changes the one of that name, which keeps serving its last
    revision until the new one is ready. A service is never deleted.

    Args:
        model: The model, from pytorch_job or imported. It lies where its metadata's storage_uri
            says, or else at its own URI; minio:// becomes s3://.
        service_name: The InferenceService's name, also the model's name in its URL.
        namespace: Its namespace; empty for the step's own.
        model_format: The format that a serving runtime must support; empty for the model's own,
            or kfp-pytorch.
        runtime: The ServingRuntime or ClusterServingRuntime; empty for KServe's choice.
        protocol: The inference protocol: v1 or v2.
        deployment_mode: Standard (RawDeployment in older KServe), Knative (Serverless), or empty
            for the cluster's default. It cannot be changed later.
        cpu: CPU of each predictor, such as 1 or 500m, requested and limited; empty for the
            runtime's.
        memory: Memory of each predictor, such as 2Gi; empty for the runtime's.
        gpus: Accelerators of each predictor.
        gpu_resource: The accelerators' resource name.
        env: Environment variables: a string, a number, true or false each, or a reference such as
            {"secretKeyRef": {"name": "a-secret", "key": "a-key"}}.
        min_replicas: The least number of predictors; in Knative mode 0 lets it scale to zero.
        max_replicas: The largest number of predictors; 0 for KServe's default.
        canary_traffic_percent: Traffic that the new revision gets, the last one keeping the rest;
            -1 for all of it. Knative mode only.
        request_timeout: Seconds that one request may take; 0 for KServe's default.
        service_account: The predictor's service account, whose Secrets hold the storage's
            credentials; empty for the namespace's default.
        storage_key: The key in the Secret storage-config that holds the storage's credentials,
            instead of a service account's.
        node_selector: Labels that a node must have.
        tolerations: Taints that the predictors tolerate, as a list of Kubernetes' objects.
        labels: Labels of the service and its pods.
        annotations: Annotations of the service and its pods.
        timeout: Seconds until the new revision must serve.

    Returns:
        url: The exact URL of predictions, as the world sees it.
        cluster_url: The same for callers within the cluster.
        service_name: The InferenceService's name.
        revision: The hash of what was deployed, in the annotation kfp-pytorch/spec-hash of its
            pods.
    """
    inputs = dict(locals())
    from kfp_pytorch.launcher import run_step

    return run_step("kserve_deploy", **inputs)
