"""Prometheus finds the pods that serve metrics, and the dashboard shows metrics that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from harness.kustomize import Object, build
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kfp_pytorch.launcher.constants import MANAGED_BY_LABEL, PREFIX
from kfp_pytorch.launcher.jobs.pytorchjob.inputs import parse_inputs
from kfp_pytorch.launcher.jobs.pytorchjob.manifest import manifest
from kfp_pytorch.serving.metrics import Recorder
from kfp_pytorch.training.telemetry import prometheus

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
# The label by which each operator tells the job of a pod.
OPERATORS = ("training.kubeflow.org/job-name", "jobset.sigs.k8s.io/jobset-name")
# What KServe gives a predictor's pod, beside the labels of its InferenceService.
KSERVE = {"component": "predictor", "serving.kserve.io/inferenceservice": "digits"}
TRAINING, SERVING, DASHBOARD = build(MANIFESTS / "monitoring")
# Every series has these from Prometheus and its operator.
GIVEN = {"namespace", "pod", "le"}


def test_a_named_port_in_the_patch_is_the_one_that_prometheus_reads() -> None:
    port = {"name": "metrics", "containerPort": 9090}
    patch = {"spec": {"containers": [{"name": "pytorch", "ports": [port]}]}}
    inputs = parse_inputs(
        image="train:1",
        num_nodes=2,
        hyperparameters={"metrics-port": 9090},
        pod_template_patch=patch,
    )
    labels = {MANAGED_BY_LABEL: PREFIX}
    job = manifest(inputs, job_name="j-1", labels=labels, annotations={}, owner=None)
    (endpoint,) = TRAINING["spec"]["podMetricsEndpoints"]
    for replicas in job["spec"]["pytorchReplicaSpecs"].values():
        template = replicas["template"]
        (container,) = template["spec"]["containers"]
        assert endpoint["port"] in [each["name"] for each in container["ports"]]
        assert "--metrics-port=9090" in container["args"]
        found = template["metadata"]["labels"]
        assert TRAINING["spec"]["selector"]["matchLabels"].items() <= found.items()
    for key in OPERATORS:
        assert _relabeled(endpoint, {key: "j-1"}) == {"job_name": "j-1"}


def _relabeled(endpoint: Object, labels: dict[str, str]) -> dict[str, str]:
    """The labels that a pod's series get of the pod's."""
    known = {
        f"__meta_kubernetes_pod_label_{re.sub(r'[^a-zA-Z0-9_]', '_', k)}": v
        for k, v in labels.items()
    }
    return {
        rule["targetLabel"]: rule["separator"].join(known.get(s, "") for s in rule["sourceLabels"])
        for rule in endpoint["relabelings"]
    }


def test_a_predictors_metrics_are_read_at_its_http_port() -> None:
    found = KSERVE | {MANAGED_BY_LABEL: PREFIX}
    assert SERVING["spec"]["selector"]["matchLabels"].items() <= found.items()
    (exists,) = SERVING["spec"]["selector"]["matchExpressions"]
    assert exists["key"] in found
    endpoints = {each["port"]: each for each in SERVING["spec"]["podMetricsEndpoints"]}
    declared = set()
    for file in ("serving-runtime.yaml", "serving-runtime-grpc.yaml"):
        (container,) = yaml.safe_load((MANIFESTS / file).read_text())["spec"]["containers"]
        (port,) = container["ports"]
        declared.add(port["name"])
        (http,) = (a for a in container["args"] if a.startswith("--http_port="))
        read = _address(endpoints[port["name"]], "10.0.0.7", port["containerPort"])
        assert read == f"10.0.0.7:{http.partition('=')[2]}"
    assert set(endpoints) == declared | {"user-port"}
    assert _address(endpoints["user-port"], "fd00::7", 8081) == "[fd00::7]:8080"


def _address(endpoint: Object, ip: str, port: int) -> str:
    """What Prometheus makes of an endpoint's relabelings: each as the whole of a pattern."""
    address = f"{ip}:{port}"
    for rule in endpoint.get("relabelings", []):
        assert rule["sourceLabels"] == ["__meta_kubernetes_pod_ip"]
        assert rule["targetLabel"] == "__address__"
        if found := re.fullmatch(rule["regex"], ip):
            address = rule["replacement"].replace("$1", found[1])
    return address


def exposed() -> dict[str, set[str]]:
    """The series that training and serving expose, each with its labels."""
    recorder = Recorder("digits")
    recorder.request("v1", "200", 0.1)
    recorder.batch(1, 0.1)
    exporter = prometheus.Exporter(0, lambda: (1, 2), starts=0)
    exporter.report(dict.fromkeys([*prometheus._HELPS, f"{prometheus.TIMES}data"], 1.0))
    training = CollectorRegistry()
    training.register(exporter)
    found: dict[str, set[str]] = {}
    for registry, monitor in ((training, TRAINING), (REGISTRY, SERVING)):
        added = {re.sub(r"\W", "_", each) for each in monitor["spec"].get("podTargetLabels", [])}
        rules = [
            r for e in monitor["spec"]["podMetricsEndpoints"] for r in e.get("relabelings", [])
        ]
        added |= {rule["targetLabel"] for rule in rules}
        for family in text_string_to_metric_families(generate_latest(registry).decode()):
            for sample in family.samples:
                labels = set(sample.labels) | added | GIVEN
                found.setdefault(sample.name, set()).update(labels)
    return found


def test_the_dashboard_shows_all_our_metrics_with_labels_that_they_have() -> None:
    dashboard = json.loads(DASHBOARD["data"]["kfp-pytorch.json"])
    targets = [each for panel in dashboard["panels"] for each in panel.get("targets", [])]
    asked = [target["expr"] for target in targets]
    asked += [each.get("definition", "") for each in dashboard["templating"]["list"]]
    series, shown = exposed(), set()
    for expression in filter(None, asked):
        names = set(re.findall(r"\bkfp_pytorch_\w+", expression))
        used = set(re.findall(r'(\w+)=~?"', expression))
        for grouped in re.findall(r"by \((.*?)\)", expression):
            used |= set(grouped.split(", "))
        used |= set(re.findall(r"^label_values\(.*, (\w+)\)$", expression))
        assert names, expression
        for name in names:
            assert used <= series[name], expression
        shown |= names
    suffix = re.compile("_(bucket|count|sum|total|created)$")
    ours = {suffix.sub("", name) for name in series if name.startswith("kfp_pytorch_")}
    assert {suffix.sub("", name) for name in shown} == ours


def test_each_legend_names_labels_that_the_query_keeps_and_each_panel_has_its_place() -> None:
    dashboard = json.loads(DASHBOARD["data"]["kfp-pytorch.json"])
    places = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        places.add((place["x"], place["y"]))
        for target in panel.get("targets", []):
            kept = re.search(r"by \((.*?)\)", target["expr"])
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                assert kept is None or label in kept[1].split(", "), target
    assert len(places) == len(dashboard["panels"])
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
