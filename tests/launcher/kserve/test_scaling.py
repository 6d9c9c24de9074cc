"""How a predictor is scaled, and what no autoscaler would do."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.kserve.manifest import ServiceInputs, parse_inputs

Object = dict[str, Any]
CPU: Object = {"scale_metric": "cpu", "scale_target": 60, "max_replicas": 4}
RPS: Object = {"scale_metric": "rps", "scale_target": 50, "deployment_mode": "Knative"}


def parsed(**inputs: Any) -> ServiceInputs:
    return parse_inputs("s3://bkt/m", {}, service_name="d", **inputs)


def test_an_hpa_and_knative_scale_by_a_metric_of_the_predictor() -> None:
    by_cpu = parsed(**CPU).predictor
    assert (by_cpu["scaleMetric"], by_cpu["scaleTarget"]) == ("cpu", 60)
    by_rps = parsed(**RPS).predictor
    assert (by_rps["scaleMetric"], by_rps["scaleTarget"]) == ("rps", 50)


def test_keda_scales_by_metrics_of_its_own_field() -> None:
    inputs = parsed(**CPU, autoscaler="keda")
    assert inputs.annotations == {"serving.kserve.io/autoscalerClass": "keda"}
    assert "scaleMetric" not in inputs.predictor
    assert inputs.predictor["autoScaling"] == {
        "metrics": [
            {
                "type": "Resource",
                "resource": {
                    "name": "cpu",
                    "target": {"type": "Utilization", "averageUtilization": 60},
                },
            }
        ]
    }
    query = {"spec": {"predictor": {"autoScaling": {"metrics": [{"type": "External"}]}}}}
    assert parsed(autoscaler="keda", service_patch=query).annotations


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"scale_metric": "cpu"}, "scale_metric is 'cpu' without scale_target"),
        ({"scale_target": 5}, "scale_target is 5 without scale_metric"),
        ({"scale_metric": "gpu", "scale_target": 5}, "scale_metric is 'gpu'"),
        (CPU | {"deployment_mode": "Knative"}, "scales by concurrency or rps"),
        (RPS | {"deployment_mode": ""}, "only Knative scales by"),
        (RPS | {"deployment_mode": "Standard"}, "only Knative scales by"),
        (CPU | {"scale_target": 101}, "scale_target is 101; of cpu it is the percentage"),
        (CPU | {"max_replicas": 0}, "max_replicas is 0, not above min_replicas"),
        (CPU | {"max_replicas": 2, "min_replicas": 2}, "not above min_replicas, which is 2"),
        (CPU | {"autoscaler": "external"}, "autoscaler is 'external', with which"),
        (RPS | {"autoscaler": "hpa"}, "deployment_mode is 'Knative', which has its own"),
        ({"autoscaler": "keda"}, "scales by nothing without a metric"),
        (CPU | {"autoscaler": "keda", "min_replicas": 0}, "KEDA scales to none by a query"),
        ({"autoscaler": "kpa"}, "autoscaler is 'kpa'"),
        ({"annotations": {"serving.kserve.io/autoscalerClass": "keda"}}, "use autoscaler"),
        ({"min_replicas": 3, "max_replicas": 2}, "max_replicas is 2, less than min_replicas"),
    ],
)
def test_what_no_autoscaler_would_do_is_refused_by_name(inputs: Object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parsed(**inputs)
