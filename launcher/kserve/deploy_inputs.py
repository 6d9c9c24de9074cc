"""The inputs of `kserve_deploy`: their declaration and their checks.

`manifest.py` makes the InferenceService of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import environment, k8s, placement, readers, storage
from kfp_pytorch.launcher.inputs.declaration import declare, parse

PREFIX = "serving.kserve.io"
MODE_ANNOTATION = f"{PREFIX}/deploymentMode"
STOP_ANNOTATION = f"{PREFIX}/stop"
AUTOSCALER_ANNOTATION = f"{PREFIX}/autoscalerClass"
# KServe 0.16 renamed its modes, and takes the old names too.
MODES = {"": "", "RawDeployment": "Standard", "Serverless": "Knative"}
MODES |= {"Standard": "Standard", "Knative": "Knative"}


def service_name(name: str, value: Any) -> str:
    """Make a service's name of the input."""
    given = storage.without_placeholder(readers.text(name, value), name)
    word = re.sub(r"[^a-z0-9]+", "-", given.lower()).strip("-")
    if not word:
        raise InputError(
            f"{name} is {given!r}; it needs a letter or digit that a host's name may have "
            "(a-z, 0-9)."
        )
    return word if word[0].isalpha() else f"s-{word}"


def _annotations(name: str, value: Any) -> dict[str, str]:
    annotations = k8s.annotation_map(name, value)
    if MODE_ANNOTATION in annotations:
        raise InputError(f"{name} may not have {MODE_ANNOTATION!r}; use deployment_mode.")
    if annotations.get(STOP_ANNOTATION, "").lower() == "true":
        raise InputError(
            f"{name}[{STOP_ANNOTATION!r}] is 'true', so KServe would run nothing, and the "
            "step would never end. Leave it out; stop the service once it has been deployed."
        )
    return annotations


def _environment(name: str, value: Any) -> tuple[dict[str, Any], ...]:
    env = environment.variables(name, value)
    environment.check_size((), (), env)
    return env


@dataclass(frozen=True)
class DeployInputs:
    """The checked inputs of `kserve_deploy`."""

    service_name: str = declare(service_name, None)
    namespace: str = declare(k8s.dns_label, "")
    model_format: str = declare(readers.text, "")
    runtime: str = declare(k8s.dns_subdomain, "")
    protocol: str = declare(readers.one_of("v1", "v2"), "v1")
    deployment_mode: str = declare(readers.one_of(*MODES), "")
    cpu: str = declare(k8s.cpu, "")
    memory: str = declare(k8s.memory, "")
    gpus: int = declare(partial(readers.integer, maximum=4096), 0)
    gpu_resource: str = declare(placement.gpu_resource, placement.GPU_RESOURCE)
    env: tuple[dict[str, Any], ...] = declare(_environment, {})
    min_replicas: int = declare(readers.integer, 1)
    max_replicas: int = declare(readers.integer, 0)
    canary_traffic_percent: int = declare(partial(readers.integer, minimum=-1, maximum=100), -1)
    request_timeout: int = declare(readers.integer, 0)
    service_account: str = declare(k8s.dns_subdomain, "")
    storage_key: str = declare(readers.text, "")
    node_selector: dict[str, str] = declare(k8s.label_map, {})
    tolerations: tuple[dict[str, Any], ...] = declare(placement.tolerations, [])
    labels: dict[str, str] = declare(k8s.label_map, {})
    annotations: dict[str, str] = declare(_annotations, {})
    timeout: int = declare(partial(readers.integer, minimum=1), 900)


def parse_deploy_inputs(**inputs: Any) -> DeployInputs:
    """Check the inputs of `kserve_deploy`, the model not counted."""
    given = parse(DeployInputs, "kserve_deploy", inputs)
    if given.canary_traffic_percent >= 0 and MODES[given.deployment_mode] == "Standard":
        because = f"deployment_mode is {given.deployment_mode!r}"
        raise InputError(no_raw_canary(given.canary_traffic_percent, because))
    if given.max_replicas and given.max_replicas < given.min_replicas:
        raise InputError(
            f"max_replicas is {given.max_replicas}, less than min_replicas, which is "
            f"{given.min_replicas}."
        )
    return given


def no_raw_canary(percent: int, because: str) -> str:
    """Return why a canary is refused."""
    return (
        f"canary_traffic_percent is {percent}, but {because}, where KServe does not read it: the "
        "new revision would get all of the traffic. Leave it at -1, deploy under another "
        "service_name to try a model, or use a service in Knative mode."
    )
