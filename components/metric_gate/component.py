"""Stops a pipeline when a metric is beyond its threshold."""

from typing import NamedTuple

from kfp.dsl import Input, Metrics

from kfp_pytorch.components.caching import uncached
from kfp_pytorch.components.embedding import launcher_component


# A cache that knows artifacts by their names lets each run pass with the metrics of the first:
# https://github.com/kubeflow/pipelines/pull/12751
@uncached
@launcher_component
def metric_gate(
    metrics: Input[Metrics],
    metric: str = "accuracy",
    minimum: float = -1e308,
    maximum: float = 1e308,
) -> NamedTuple("Outputs", value=float):  # type: ignore[valid-type]
    """Lets a pipeline go on only with a metric that is good enough.

    Fails, and so stops what comes after it, when the metric is beyond a threshold, is not there,
    or is no finite number; the message says which and by how much.

    Args:
        metrics: The metrics, as pytorch_job hands them on.
        metric: The metric's name.
        minimum: The smallest value that passes; -1e308 for none.
        maximum: The largest value that passes, as for a loss; 1e308 for none.

    Returns:
        value: The metric's value.
    """
    inputs = dict(locals())
    from kfp_pytorch.launcher import run_step

    return (run_step("metric_gate", **inputs),)
