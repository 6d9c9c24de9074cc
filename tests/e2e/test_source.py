"""Code without an image build: a package of this machine trains in the pods."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

PIPELINES = Path(__file__).with_name("source_pipelines.py")
CONTENT = b"WORDS = '$HOME `ls` \\\\d'\r\nwidth = 3\r\n"


@pytest.mark.slow
def test_a_package_runs_in_the_pods_byte_for_byte_and_its_configmap_is_gone_with_the_job(cluster):
    ran = cluster.run(f"{PIPELINES}:with_source")
    assert ran.code == 0, ran.stderr
    assert f"sum {hashlib.sha256(CONTENT).hexdigest()} of 2" in ran.stderr
    assert "ran $HOME" in ran.stderr
    from kubernetes import client, config

    api = client.CoreV1Api(config.new_client_from_config(str(cluster.kubeconfig)))
    names = [each.metadata.name for each in api.list_namespaced_config_map(cluster.namespace).items]
    assert not [name for name in names if name.startswith("with-source-")]
