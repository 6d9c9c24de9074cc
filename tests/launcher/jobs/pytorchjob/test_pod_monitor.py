"""The shipped PodMonitor finds the pods of a job that serves metrics."""

from __future__ import annotations

from pathlib import Path

import yaml

from kfp_pytorch.launcher.constants import MANAGED_BY_LABEL, PREFIX
from kfp_pytorch.launcher.jobs.pytorchjob.inputs import parse_inputs
from kfp_pytorch.launcher.jobs.pytorchjob.manifest import manifest

MANIFEST = Path(__file__).resolve().parents[4] / "manifests" / "pod-monitor.yaml"
# What the operator adds to the labels of every pod.
OPERATOR = {"training.kubeflow.org/operator-name": "pytorchjob-controller"}


def test_a_named_port_in_the_patch_is_the_one_that_prometheus_reads():
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
    monitor = yaml.safe_load(MANIFEST.read_text())["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    for replicas in job["spec"]["pytorchReplicaSpecs"].values():
        template = replicas["template"]
        (container,) = template["spec"]["containers"]
        assert endpoint["port"] in [each["name"] for each in container["ports"]]
        assert "--metrics-port=9090" in container["args"]
        found = {**template["metadata"]["labels"], **OPERATOR}
        assert monitor["selector"]["matchLabels"].items() <= found.items()
