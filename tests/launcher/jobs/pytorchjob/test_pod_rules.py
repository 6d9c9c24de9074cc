"""What Kubernetes refuses of a pod is refused before there is a job."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs.scheduling.demands import Demands, Pods
from kfp_pytorch.launcher.jobs.pytorchjob.inputs import parse_inputs
from kfp_pytorch.launcher.jobs.pytorchjob.manifest import pod_template


def spec(**inputs: Any) -> dict[str, Any]:
    parsed = parse_inputs(**{"image": "i"} | inputs)
    found: dict[str, Any] = pod_template(parsed, Pods("j", {}, {"Master": 1}), Demands())["spec"]
    return found


def patched(**container: Any) -> dict[str, Any]:
    return {"pod_template_patch": {"spec": {"containers": [{"name": "pytorch"} | container]}}}


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"security_context": {"runAsUser": 0}}, "runAsUser 0 with runAsNonRoot true"),
        ({"security_context": {"fsGroupChangePolicy": "Bad"}}, "fsGroupChangePolicy is 'Bad'"),
        ({"pod_template_patch": {"spec": {"activeDeadlineSeconds": 0}}}, "Seconds is 0"),
        ({"pod_template_patch": {"spec": {"priorityClassName": "A B"}}}, "Name is 'A B'"),
        ({"env": {"A": {"resourceFieldRef": {"resource": "bogus"}}}}, "resource is 'bogus'"),
        ({"gpu_resource": "kubernetes.io/x"}, "gpu_resource is 'kubernetes.io/x'"),
        ({"gpu_resource": "requests.nvidia.com/gpu"}, "gpu_resource is 'requests.nvidia"),
        ({"image": "x" * 300}, "at most 255"),
        (patched(image="x y"), "image is 'x y'"),
        (patched(ports=[{"containerPort": 99999}]), "containerPort is 99999"),
        (patched(securityContext={"runAsUser": 0}), "set run_as_root"),
        (patched(resources={"limits": {"gpu": 1}}), "limits is 'gpu'"),
        (patched(resources=[1]), "must be an object"),
        (patched(resources={"limits": {"nvidia.com/gpu": 0.5}}), "it must be a whole number"),
        (patched(resources={"limits": {"memory": "much"}}), "it must be a quantity, such as"),
        (
            patched(resources={"requests": {"amd.com/gpu": 1}}),
            "amd.com/gpu, and its limit is un",
        ),
        (
            {"gpus_per_node": 1, **patched(resources={"requests": {"nvidia.com/gpu": 2}})},
            "requests 2 of nvidia.com/gpu, and its limit is 1",
        ),
        (
            {"cpu": "2", **patched(resources={"requests": {"cpu": "2500m"}})},
            "requests 2.5 of cpu, and its limit is 2; a request is at most the limit",
        ),
        ({"pod_template_patch": {"spec": {"schedulerName": ["x"]}}}, "schedulerName must be a"),
        ({"pod_template_patch": {"metadata": {"labels": ["x"]}}}, "labels must be an object"),
    ],
)
def test_what_the_api_server_or_a_node_would_refuse_of_every_pod_makes_no_job(
    inputs: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        spec(**inputs)


def test_what_kubernetes_takes_is_left_as_it_was_written() -> None:
    ports = [{"containerPort": 80, "hostPort": 0}]
    name = "registry.example.com:5000/" + "x" * 255 + ":tag"
    made = spec(
        image=name,
        run_as_root=True,
        security_context={"runAsUser": 0},
        **patched(ports=ports, resources={"limits": {"hugepages-2Mi": "1Gi", "amd.com/gpu": 1}}),
    )
    assert made["containers"][0]["image"] == name
    assert made["containers"][0]["ports"] == ports
