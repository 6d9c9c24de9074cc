"""A typing error among Kubernetes' own fields is told when a pipeline is compiled."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("call", "kind", "field"),
    [
        (
            "pytorch_job(image='i', pod_template_patch={'spec': {'nodeSelectr': {'a': 'b'}}})",
            "PyTorchJob",
            "spec.nodeSelectr",
        ),
        (
            "kubeflow_job(manifest={'apiVersion': 'kubeflow.org/v1', 'kind': 'JAXJob', 'spec': "
            "{'size': 2, 'jaxReplicaSpecs': {'Worker': {'template': {'spec': {'containers': "
            "[{'name': 'jax', 'image': 'i', 'comand': []}]}}}}}})",
            "JAXJob",
            "spec.containers[0].comand, spec.size",
        ),
        (
            "kserve_deploy(service_name='s', storage_uri='s3://bucket/m', model_format='onnx', "
            "service_patch={'spec': {'predictor': {'containerConcurency': 1}}})",
            "InferenceService",
            "spec.predictor.containerConcurency",
        ),
    ],
)
def test_a_field_that_a_kind_does_not_have_is_told_and_compiled_for_a_cluster_may_be_newer(
    cli, tmp_path, call, kind, field
):
    name = call.partition("(")[0]
    (tmp_path / "mine.py").write_text(
        f"from kfp import dsl\nfrom kfp_pytorch.components import {name}\n"
        f"@dsl.pipeline\ndef mine():\n    {call}\n"
    )
    result = cli("compile", tmp_path / "mine.py", "--output", tmp_path / "a.yaml")
    assert result.exit_code == 0, result.output
    assert f"the kind {kind} has no field {field}. Look" in result.stderr
    assert (tmp_path / "a.yaml").exists()
