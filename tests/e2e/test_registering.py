"""A run on this machine trains a model, registers it to both registries, and serves it."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.registries import kubeflow, mlflow
from harness.registries.serving import serve

from kfp_pytorch.launcher.constants import INFERENCE_SERVICE
from kfp_pytorch.local import client, lifecycle

pytestmark = [pytest.mark.local_cluster, pytest.mark.slow]

FILE = Path(__file__).with_name("registering_pipelines.py")
LABEL = "modelregistry.kubeflow.org"


def test_a_model_is_registered_with_its_run_and_served_with_its_ids(cluster, training_image):
    with (
        serve(kubeflow.ModelRegistry(), kubeflow.API) as registry,
        serve(mlflow.Mlflow(), mlflow.API) as tracking,
    ):
        ran = cluster.run(
            f"{FILE}:registering",
            "--keep",
            image=training_image,
            registry_url=registry.url,
            mlflow_tracking_uri=tracking.url,
        )
    assert ran.code == 0, ran.stderr
    (key,) = registry.registry.versions
    version = registry.registry.versions[key]
    known = {name: value.get("string_value") for name, value in version["customProperties"].items()}
    assert known["storage_uri"].endswith(f"/{known['run_id']}/{known['job']}/export")
    assert known["hyperparameter_dataset"] == "digits"
    assert known["run_name"].startswith("registering-")
    assert tracking.registry.tags("digits", "1")["kfp_pytorch.run_id"] == known["run_id"]
    ids = {
        f"{LABEL}/registered-model-id": version["registeredModelId"],
        f"{LABEL}/model-version-id": key,
    }
    (service,) = cluster.objects(INFERENCE_SERVICE, **ids)
    assert service["metadata"]["name"] == "registered"
    handle = lifecycle.status(cluster.root)
    path = client.path(INFERENCE_SERVICE, cluster.namespace, "registered")
    client.request(handle.url, "DELETE", path, token=handle.token)
