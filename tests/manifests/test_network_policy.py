"""The network policy: who may connect to ranks, by the labels that pods have."""

from __future__ import annotations

from pathlib import Path

from harness.kustomize import Object, build

from kfp_pytorch.launcher.constants import MANAGED_BY_LABEL, PREFIX
from kfp_pytorch.launcher.jobs.pytorchjob.inputs import parse_inputs
from kfp_pytorch.launcher.jobs.pytorchjob.manifest import manifest

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
(POLICY,) = build(MANIFESTS / "network-policy")
TRAINING, SERVING, _ = build(MANIFESTS / "monitoring")
PREDICTOR = {
    MANAGED_BY_LABEL: PREFIX,
    "component": "predictor",
    "serving.kserve.io/inferenceservice": "digits",
}
STEP = {"pipeline/runid": "1", "workflows.argoproj.io/workflow": "run"}


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Whether a selector takes a pod with these labels."""
    for rule in selector.get("matchExpressions", []):
        if (rule["key"] in labels) != {"Exists": True, "DoesNotExist": False}[rule["operator"]]:
            return False
    return selector.get("matchLabels", {}).items() <= labels.items()


def ranks() -> list[dict[str, str]]:
    job = manifest(
        parse_inputs(image="train:1", num_nodes=2),
        job_name="j-1",
        labels={MANAGED_BY_LABEL: PREFIX},
        annotations={},
        owner=None,
    )
    replicas = job["spec"]["pytorchReplicaSpecs"].values()
    return [each["template"]["metadata"]["labels"] for each in replicas]


def test_it_is_about_ranks_and_neither_predictors_nor_steps() -> None:
    spec = POLICY["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    assert len(ranks()) == 2
    assert all(selects(spec["podSelector"], labels) for labels in ranks())
    assert not selects(spec["podSelector"], PREDICTOR)
    assert not selects(spec["podSelector"], STEP)


def test_ranks_may_connect_at_every_port_and_prometheus_at_that_for_metrics() -> None:
    among, metrics = POLICY["spec"]["ingress"]
    (source,) = among["from"]
    # Without a selector of namespaces it is the policy's own.
    assert set(source) == {"podSelector"}
    assert "ports" not in among
    assert all(selects(source["podSelector"], labels) for labels in ranks())
    assert not selects(source["podSelector"], PREDICTOR)
    assert not selects(source["podSelector"], STEP)
    (source,) = metrics["from"]
    assert source["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "prometheus"}
    (endpoint,) = TRAINING["spec"]["podMetricsEndpoints"]
    assert metrics["ports"] == [{"port": endpoint["port"], "protocol": "TCP"}]


def test_each_monitor_takes_its_own_pods_alone() -> None:
    assert all(selects(TRAINING["spec"]["selector"], labels) for labels in ranks())
    assert not any(selects(SERVING["spec"]["selector"], labels) for labels in ranks())
    assert selects(SERVING["spec"]["selector"], PREDICTOR)
    assert not selects(TRAINING["spec"]["selector"], PREDICTOR)
