"""The inputs of `pytorch_job`: their declaration and their checks.

`manifest.py` makes the PyTorchJob of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs.declaration import declare
from kfp_pytorch.launcher.inputs.scheduling.demands import KUEUE_QUEUE_LABEL
from kfp_pytorch.launcher.inputs.scheduling.scheduler import KUEUE
from kfp_pytorch.launcher.jobs.pods import input_readers
from kfp_pytorch.launcher.jobs.pods.inputs import (
    PodInputs,
    check_processes,
    parse_pod_inputs,
    patched_containers,
    patches_resources,
)
from kfp_pytorch.launcher.jobs.pytorchjob import elastic
from kfp_pytorch.launcher.jobs.trainingoperator.inputs import OperatorInputs, with_backoff_limit


@dataclass(frozen=True, kw_only=True)
class PyTorchJobInputs(OperatorInputs):
    """The checked inputs of `pytorch_job`."""

    later: ClassVar[tuple[str, ...]] = (*PodInputs.later, "elastic")

    name: str = declare(input_readers.job_name, "pytorch-job")
    elastic: elastic.Elastic | None = declare(elastic.read, {})

    @property
    def resizes(self) -> bool:
        """Whether the number of nodes may change while the job runs."""
        return self.elastic is not None and self.elastic.min_nodes < self.elastic.max_nodes

    @property
    def most_nodes(self) -> int:
        """How many nodes the job may come to have."""
        return self.elastic.max_nodes if self.elastic else self.num_nodes


def parse_inputs(**inputs: Any) -> PyTorchJobInputs:
    """Check the inputs of `pytorch_job`, as KFP passes them."""
    given = parse_pod_inputs(PyTorchJobInputs, "pytorch_job", inputs)
    if given.elastic:
        asked = given.elastic
        asked = replace(asked, max_nodes=asked.max_nodes or max(given.num_nodes, asked.min_nodes))
        elastic.check_start(asked, given.num_nodes)
        of_kueue = given.scheduling.queue if given.scheduling.scheduler == KUEUE else ""
        queue = of_kueue or given.labels.get(KUEUE_QUEUE_LABEL, "")
        elastic.check_scheduling(asked, given.scheduling.min_member, queue)
        elastic.check_environment("env", given.env)
        for container in patched_containers(given):
            elastic.check_environment("pod_template_patch", container.get("env") or [])
        given = replace(given, elastic=asked)
    if given.nproc_per_node == "gpu" and not given.gpus and not patches_resources(given):
        raise InputError(
            "nproc_per_node is 'gpu', and the pods have no GPU; set gpus_per_node, or a number of "
            "processes."
        )
    check_processes(given)
    return with_backoff_limit(given, given.most_nodes)
