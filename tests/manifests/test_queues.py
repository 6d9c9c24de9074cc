"""The examples of a quota and of Kueue's queues belong together, and jobs wait in them."""

from __future__ import annotations

from pathlib import Path

from harness.kustomize import build

from kfp_pytorch.components import kueue
from kfp_pytorch.launcher.jobs.pytorchjob.inputs import parse_inputs
from kfp_pytorch.launcher.jobs.pytorchjob.manifest import manifest

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
KUEUE = {each["kind"]: each for each in build(MANIFESTS / "kueue")}
(QUOTA,) = build(MANIFESTS / "quota")


def test_a_job_waits_in_the_queue_that_the_example_makes() -> None:
    inputs = parse_inputs(image="train:1", scheduling=kueue("training"), queue_timeout=86400)
    job = manifest(inputs, job_name="j-1", labels={}, annotations={}, owner=None)
    queue = KUEUE["LocalQueue"]["metadata"]["name"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == queue


def test_the_queue_the_cluster_and_the_flavor_name_each_other() -> None:
    cluster = KUEUE["ClusterQueue"]
    assert KUEUE["LocalQueue"]["spec"]["clusterQueue"] == cluster["metadata"]["name"]
    (group,) = cluster["spec"]["resourceGroups"]
    (flavor,) = group["flavors"]
    assert flavor["name"] == KUEUE["ResourceFlavor"]["metadata"]["name"]
    assert [each["name"] for each in flavor["resources"]] == group["coveredResources"]
    assert {each["apiVersion"] for each in KUEUE.values()} == {"kueue.x-k8s.io/v1beta2"}


def test_every_resource_of_a_job_is_in_the_queues_quota() -> None:
    inputs = parse_inputs(image="train:1", gpus_per_node=1, cpu="4", memory="8Gi")
    job = manifest(inputs, job_name="j-1", labels={}, annotations={}, owner=None)
    (group,) = KUEUE["ClusterQueue"]["spec"]["resourceGroups"]
    for replicas in job["spec"]["pytorchReplicaSpecs"].values():
        resources = replicas["template"]["spec"]["containers"][0]["resources"]
        assert set(resources["limits"]) | set(resources.get("requests", {})) <= set(
            group["coveredResources"]
        )


def test_the_quota_does_not_refuse_the_steps_of_kfp_which_state_no_resources() -> None:
    hard = QUOTA["spec"]["hard"]
    computing = {"cpu", "memory", "ephemeral-storage"}
    names = {name.removeprefix("requests.").removeprefix("limits.") for name in hard}
    assert not names & computing
    assert "requests.nvidia.com/gpu" in hard
