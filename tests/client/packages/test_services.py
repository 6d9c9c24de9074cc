"""What is said before a run of a service of which only the run knows some inputs."""

from __future__ import annotations

import pytest

from kfp_pytorch.client.packages import checks
from kfp_pytorch.client.packages.known_tasks import KnownTask
from kfp_pytorch.launcher.errors import InputError


def problem(*unknown, artifacts=(), **inputs):
    given = {"service_name": "s", **inputs}
    names = frozenset(unknown), frozenset(artifacts)
    task = KnownTask("t", "kserve_deploy", given, names[0], {}, "exec-t", True, names[1])
    try:
        checks._kserve_deploy(task)
    except InputError as error:
        return error.message
    return ""


URI = "s3://models/m"


@pytest.mark.parametrize(
    ("unknown", "inputs"),
    [
        (["storage_uri"], {}),
        (["storage_uri"], {"storage_key": "k"}),
        (["container"], {}),
        (["args"], {"model_format": "huggingface"}),
        (["model_format"], {"args": ["--model_id=a/b"]}),
        (["scale_metric"], {"storage_uri": URI, "scale_target": 5}),
        (["deployment_mode"], {"storage_uri": URI, "scale_metric": "rps", "scale_target": 5}),
        (["max_replicas"], {"storage_uri": URI, "scale_metric": "cpu", "scale_target": 5}),
        (["service_patch"], {"storage_uri": URI, "autoscaler": "keda"}),
        (["storage_key"], {"storage_uri": URI, "storage_parameters": {"region": "a"}}),
        (
            ["volumes"],
            {"container": {"image": "i"}, "volume_mounts": [{"name": "v", "mountPath": "/v"}]},
        ),
        (["protocol"], {"storage_uri": URI, "batcher": {"maxBatchSize": 2}, "runtime": "r"}),
        (["runtime"], {"storage_uri": URI, "model_format": "onnx", "protocol": "openai"}),
        (["args"], {"storage_uri": URI, "model_name": "a"}),
    ],
)
def test_what_only_the_run_knows_contradicts_nothing(unknown, inputs):
    assert problem(*unknown, **inputs) == ""


@pytest.mark.parametrize(
    ("unknown", "inputs", "said"),
    [
        ([], {}, "There is no model to deploy"),
        (["cpu"], {}, "There is no model to deploy"),
        (["cpu"], {"storage_uri": URI, "scale_target": 5}, "without scale_metric"),
        (
            [],
            {"storage_uri": URI, "service_patch": {"spec": {"predictor": {"model": 1}}}},
            "is a int",
        ),
        ([], {"storage_uri": URI, "service_patch": {"metadata": {"name": "x"}}}, "metadata.name"),
        ([], {"storage_uri": URI, "transformer": {"image": "i"}, "service_name": "s" * 50}, ""),
        (
            [],
            {
                "storage_uri": URI,
                "transformer": {"image": "i"},
                "service_name": "s" * 50,
                "namespace": "n",
            },
            "s-transformer-n",
        ),
    ],
)
def test_what_is_known_is_checked_all_the_same(unknown, inputs, said):
    assert said in problem(*unknown, **inputs)


def test_a_model_and_a_uri_are_one_too_many_though_only_the_run_knows_either():
    assert "Both model and storage_uri" in problem("storage_uri", artifacts=["model"])
