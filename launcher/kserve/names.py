"""Names that KServe gives a meaning to, and this project's own on an InferenceService.

https://github.com/kserve/kserve/blob/v0.20.0/pkg/constants/constants.go
"""

from __future__ import annotations

PREFIX = "serving.kserve.io"
MODE_ANNOTATION = f"{PREFIX}/deploymentMode"
STOP_ANNOTATION = f"{PREFIX}/stop"
AUTOSCALER_ANNOTATION = f"{PREFIX}/autoscalerClass"
POD_LABEL = f"{PREFIX}/inferenceservice"
# The container that serves, and the variable by which a custom one gets its model.
CONTAINER = "kserve-container"
INITIALIZER = "storage-initializer"
STORAGE_URI_ENV = "STORAGE_URI"
PROTOCOL_ENV = "PROTOCOL"
# KServe knows no name for the OpenAI protocol.
PROTOCOL_VERSIONS = {"v1": "v1", "v2": "v2", "grpc": "grpc-v2"}
# KServe 0.16 renamed its modes, and takes the old names too.
MODES = {"": "", "RawDeployment": "Standard", "Serverless": "Knative"}
MODES |= {"Standard": "Standard", "Knative": "Knative"}
# https://github.com/kserve/kserve/tree/v0.20.0/config/runtimes
TRITON_RUNTIME = "kserve-tritonserver"
TRITON, HUGGING_FACE, VLLM = "triton", "huggingface", "vLLM"
# Who sets the replicas in Standard mode, and by which metrics: of a pod's resources, which only
# Standard mode scales by, and of requests, which only Knative does.
AUTOSCALERS = ("hpa", "keda", "external", "none")
RESOURCE_METRICS = ("cpu", "memory")
REQUEST_METRICS = ("concurrency", "rps")


def title(namespace: str, name: str) -> str:
    """Name an InferenceService with its kind."""
    return f"InferenceService {namespace}/{name}"


def not_written(service: str, name: str, said: str) -> str:
    """Say that others change a service all the time; `service`: its title, `said`: the server."""
    return (
        f"{service} could not be written: another client changes it all the time: {said}.\n"
        f"Find out who (kubectl get inferenceservice {name} -o yaml --show-managed-fields), stop "
        "that and start the step again."
    )
