"""The inputs of `pytorch_job`: their declaration and their checks.

`manifest.py` makes the PyTorchJob of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kfp_pytorch.launcher.inputs.declaration import declare
from kfp_pytorch.launcher.jobs.pods import input_readers
from kfp_pytorch.launcher.jobs.pods.inputs import parse_pod_inputs
from kfp_pytorch.launcher.jobs.trainingoperator.inputs import OperatorInputs, with_backoff_limit


@dataclass(frozen=True, kw_only=True)
class PyTorchJobInputs(OperatorInputs):
    """The checked inputs of `pytorch_job`."""

    name: str = declare(input_readers.job_name, "pytorch-job")


def parse_inputs(**inputs: Any) -> PyTorchJobInputs:
    """Check the inputs of `pytorch_job`, as KFP passes them."""
    given = parse_pod_inputs(PyTorchJobInputs, "pytorch_job", inputs)
    return with_backoff_limit(given, given.num_nodes)
