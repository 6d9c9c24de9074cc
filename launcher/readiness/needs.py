"""What a run will need: the inputs of `preflight`, which are the options of the command too."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import k8s, placement, readers, storage
from kfp_pytorch.launcher.inputs.declaration import declare, parse
from kfp_pytorch.launcher.inputs.storage import Location
from kfp_pytorch.launcher.jobs.pods.inputs import MAX_NODES
from kfp_pytorch.launcher.jobs.registry import STEPS
from kfp_pytorch.launcher.readiness.uses import USES


def _components(name: str, value: Any) -> tuple[str, ...]:
    given = tuple(dict.fromkeys(readers.strings(name, value)))
    for each in given:
        if each not in USES:
            raise InputError(f"{name} has {each!r}; the components are {', '.join(USES)}.")
    return given


def _endpoint(name: str, value: Any) -> str:
    word = readers.text(name, value)
    parts = urlsplit(word)
    if word and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise InputError(f"{name} is {word!r}; write http:// or https:// and a host.")
    return word.rstrip("/")


@dataclass(frozen=True)
class Needs:
    """The checked inputs of `preflight`."""

    components: tuple[str, ...] = declare(_components, ["pytorch_job"])
    namespace: str = declare(k8s.dns_label, "")
    num_nodes: int = declare(partial(readers.integer, minimum=1, maximum=MAX_NODES), 1)
    gpus_per_node: int = declare(partial(readers.integer, maximum=4096), 0)
    gpu_resource: str = declare(placement.gpu_resource, placement.GPU_RESOURCE)
    cpu: str = declare(k8s.cpu, "")
    memory: str = declare(k8s.memory, "")
    node_selector: dict[str, str] = declare(k8s.label_map, {})
    tolerations: tuple[dict[str, Any], ...] = declare(placement.tolerations, [])
    output_uri: Location = declare(storage.location, constants.DEFAULT_OUTPUT_URI)
    output_endpoint: str = declare(_endpoint, "")
    runtime: str = declare(k8s.dns_subdomain, "")
    queue: str = declare(k8s.dns_subdomain, "")
    service_account: str = declare(k8s.dns_subdomain, "")

    @property
    def trains(self) -> bool:
        """Whether the run has a job."""
        return any(name in STEPS for name in self.components)

    @property
    def amounts(self) -> dict[str, float]:
        """What each pod of the job asks for, by resource; nothing where that is not given."""
        given = {"cpu": self.cpu, "memory": self.memory}
        given |= {self.gpu_resource: str(self.gpus_per_node)} if self.gpus_per_node else {}
        return {name: k8s.quantity_value(each) or 0.0 for name, each in given.items() if each}


def parse_needs(**inputs: Any) -> Needs:
    """Check the inputs of `preflight`. Raises InputError: one cannot work."""
    return parse(Needs, "preflight", inputs)
