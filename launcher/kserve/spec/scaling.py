"""How a predictor is scaled: in Standard mode by an HPA or KEDA, in Knative mode by Knative.

KServe ignores, in either mode, what only the other has:
https://github.com/kserve/kserve/blob/v0.20.0/pkg/controller/v1beta1/inferenceservice/reconcilers/
(hpa, keda), and `validateAutoScalingCompExtension` in pkg/apis/serving/v1beta1.
"""

from __future__ import annotations

from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.kserve.deploy_inputs import DeployInputs
from kfp_pytorch.launcher.kserve.names import MODES, REQUEST_METRICS, RESOURCE_METRICS
from kfp_pytorch.launcher.kubernetes.objects import dig


def check(given: DeployInputs) -> None:
    """Refuse what no autoscaler would do."""
    metric, target, mode = given.scale_metric, given.scale_target, MODES[given.deployment_mode]
    if bool(metric) != bool(target):
        have, lack = (
            ("scale_metric", "scale_target") if metric else ("scale_target", "scale_metric")
        )
        raise InputError(f"{have} is {metric or target!r} without {lack}; give both, or none.")
    if given.autoscaler and mode == "Knative":
        raise InputError(
            f"autoscaler is {given.autoscaler!r}, but deployment_mode is 'Knative', which has its "
            "own; leave autoscaler out."
        )
    if metric in REQUEST_METRICS and mode != "Knative":
        raise InputError(
            f"scale_metric is {metric!r}, which only Knative scales by: set deployment_mode to "
            f"'Knative', or scale by {' or '.join(RESOURCE_METRICS)}."
        )
    if metric in RESOURCE_METRICS:
        _check_resource(given, mode)
    patched = dig(given.service_patch, "spec", "predictor", "autoScaling", "metrics")
    if given.autoscaler == "keda" and not (metric or patched):
        raise InputError(
            "autoscaler is 'keda', which scales by nothing without a metric: give scale_metric and "
            "scale_target, or a query as spec.predictor.autoScaling.metrics of service_patch."
        )


def _check_resource(given: DeployInputs, mode: str) -> None:
    metric = given.scale_metric
    if mode == "Knative":
        raise InputError(
            f"scale_metric is {metric!r}, but deployment_mode is 'Knative', which scales by "
            f"{' or '.join(REQUEST_METRICS)}."
        )
    if given.autoscaler in ("external", "none"):
        raise InputError(
            f"scale_metric is {metric!r}, but autoscaler is {given.autoscaler!r}, with which "
            "KServe scales nothing; leave one out."
        )
    if given.scale_target > 100:
        raise InputError(
            f"scale_target is {given.scale_target}; of {metric} it is the percentage of what a "
            "predictor requests, from 1 to 100."
        )
    if given.max_replicas <= given.min_replicas:
        raise InputError(
            f"scale_metric is {metric!r}, but max_replicas is {given.max_replicas}, not above "
            f"min_replicas, which is {given.min_replicas}: raise max_replicas."
        )
    if given.autoscaler == "keda" and not given.min_replicas:
        raise InputError(
            f"min_replicas is 0, and KEDA scales to none by a query only, not by {metric}: raise "
            "it."
        )


def fields(given: DeployInputs) -> dict[str, Any]:
    """Return the fields of a predictor by which it is scaled."""
    if not given.scale_metric:
        return {}
    if given.autoscaler != "keda":
        return {"scaleMetric": given.scale_metric, "scaleTarget": given.scale_target}
    # KServe refuses `scaleMetric` beside KEDA.
    target = {"type": "Utilization", "averageUtilization": given.scale_target}
    metric = {"type": "Resource", "resource": {"name": given.scale_metric, "target": target}}
    return {"autoScaling": {"metrics": [metric]}}
