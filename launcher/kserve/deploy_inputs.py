"""The inputs of `kserve_deploy`: their declaration and their checks.

`manifest.py` makes the InferenceService of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import environment, k8s, placement, readers
from kfp_pytorch.launcher.inputs.declaration import declare, parse
from kfp_pytorch.launcher.kserve import input_readers
from kfp_pytorch.launcher.kserve.names import (
    AUTOSCALERS,
    MODES,
    REQUEST_METRICS,
    RESOURCE_METRICS,
)


@dataclass(frozen=True)
class DeployInputs:
    """The checked inputs of `kserve_deploy`."""

    service_name: str = declare(input_readers.service_name, None)
    namespace: str = declare(k8s.dns_label, "")
    storage_uri: str = declare(input_readers.storage_uri, "")
    model_format: str = declare(input_readers.model_format, "")
    runtime: str = declare(k8s.dns_subdomain, "")
    protocol: str = declare(readers.one_of("", "v1", "v2", "grpc", "openai"), "")
    model_name: str = declare(input_readers.model_name, "")
    deployment_mode: str = declare(readers.one_of(*MODES), "")
    command: tuple[str, ...] = declare(readers.command, [])
    args: tuple[str, ...] = declare(readers.strings, [])
    container: dict[str, Any] = declare(input_readers.container, {})
    transformer: dict[str, Any] = declare(input_readers.transformer, {})
    cpu: str = declare(k8s.cpu, "")
    memory: str = declare(k8s.memory, "")
    gpus: int = declare(partial(readers.integer, maximum=4096), 0)
    gpu_resource: str = declare(placement.gpu_resource, placement.GPU_RESOURCE)
    env: tuple[dict[str, Any], ...] = declare(input_readers.variables, {})
    volumes: tuple[dict[str, Any], ...] = declare(input_readers.volumes, [])
    volume_mounts: tuple[dict[str, Any], ...] = declare(input_readers.volume_mounts, [])
    min_replicas: int = declare(readers.integer, 1)
    max_replicas: int = declare(readers.integer, 0)
    autoscaler: str = declare(readers.one_of("", *AUTOSCALERS), "")
    scale_metric: str = declare(readers.one_of("", *RESOURCE_METRICS, *REQUEST_METRICS), "")
    scale_target: int = declare(readers.integer, 0)
    canary_traffic_percent: int = declare(partial(readers.integer, minimum=-1, maximum=100), -1)
    request_timeout: int = declare(readers.integer, 0)
    batcher: dict[str, int] = declare(input_readers.batcher, {})
    service_account: str = declare(k8s.dns_subdomain, "")
    storage_key: str = declare(input_readers.storage_key, "")
    storage_parameters: dict[str, str] = declare(input_readers.storage_parameters, {})
    node_selector: dict[str, str] = declare(k8s.label_map, {})
    tolerations: tuple[dict[str, Any], ...] = declare(placement.tolerations, [])
    affinity: dict[str, Any] = declare(placement.affinity, {})
    labels: dict[str, str] = declare(k8s.label_map, {})
    annotations: dict[str, str] = declare(input_readers.service_annotations, {})
    service_patch: dict[str, Any] = declare(input_readers.service_patch, {})
    timeout: int = declare(partial(readers.integer, minimum=1), 900)


def parse_deploy_inputs(**inputs: Any) -> DeployInputs:
    """Check the inputs of `kserve_deploy`, the model not counted."""
    given = parse(DeployInputs, "kserve_deploy", inputs)
    environment.check_size(given.command, given.args, given.env)
    if given.canary_traffic_percent > 0 and MODES[given.deployment_mode] == "Standard":
        because = f"deployment_mode is {given.deployment_mode!r}"
        raise InputError(no_raw_canary(given.canary_traffic_percent, because))
    input_readers.check_replicas(given.min_replicas, given.max_replicas)
    return given


def no_raw_canary(percent: int, because: str) -> str:
    """Return why a canary is refused."""
    return (
        f"canary_traffic_percent is {percent}, but {because}, where KServe does not read it: the "
        "new revision would get all of the traffic. Set it to 0: the new revision is then beside "
        "the one that serves, at a URL of its own (canary_url), until kserve_rollout promotes it."
    )
