"""The inputs of `pytorch_job`: their declaration and their checks.

`manifest.py` makes the PyTorchJob of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kfp_pytorch.launcher.inputs import readers
from kfp_pytorch.launcher.inputs.declaration import declare
from kfp_pytorch.launcher.jobs.pods import input_readers
from kfp_pytorch.launcher.jobs.pods.inputs import PodInputs, parse_pod_inputs

# A crash of a distributed job counts once a node, so this many restarts of the whole job.
RESTARTS_BEFORE_FAILURE = 3


@dataclass(frozen=True, kw_only=True)
class PyTorchJobInputs(PodInputs):
    """The checked inputs of `pytorch_job`."""

    name: str = declare(input_readers.job_name, "pytorch-job")
    backoff_limit: int = declare(partial(readers.integer, minimum=-1), -1)
    ttl_seconds: int = declare(input_readers.ttl, 86_400)
    clean_pod_policy: str = declare(input_readers.clean_pod_policy, "Running")
    restart_policy: str = declare(
        readers.one_of("OnFailure", "Never", "Always", "ExitCode"), "OnFailure"
    )


def parse_inputs(**inputs: Any) -> PyTorchJobInputs:
    """Check the inputs of `pytorch_job`, as KFP passes them."""
    given = parse_pod_inputs(PyTorchJobInputs, "pytorch_job", inputs)
    restarts = RESTARTS_BEFORE_FAILURE * given.num_nodes
    return replace(
        given, backoff_limit=restarts if given.backoff_limit < 0 else given.backoff_limit
    )
