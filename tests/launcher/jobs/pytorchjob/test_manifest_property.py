from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kfp_pytorch.launcher.inputs.datasets import SLOTS
from kfp_pytorch.launcher.inputs.declaration import inputs_of
from kfp_pytorch.launcher.jobs.pytorchjob.inputs import PyTorchJobInputs, parse_inputs
from kfp_pytorch.launcher.jobs.pytorchjob.manifest import manifest

Check = Callable[[str, dict[str, Any]], None]
OWNER = {
    "apiVersion": "argoproj.io/v1alpha1",
    "kind": "Workflow",
    "name": "wf",
    "uid": "1",
    "controller": False,
    "blockOwnerDeletion": False,
}

# No argument or variable can carry NUL; the checks refuse it.
character = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
scalar = st.text(character, max_size=8) | st.integers(-5, 5) | st.booleans() | st.floats(-1e6, 1e6)
word = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
keys = st.from_regex(r"([a-z]{1,5}\.io/)?[A-Za-z][-._A-Za-z0-9]{0,5}[a-z]", fullmatch=True)
variable = st.from_regex(r"[A-Z][A-Z_]{0,6}X", fullmatch=True)
quantity = st.from_regex(r"[1-9][0-9]{0,2}Gi", fullmatch=True)
toleration = st.fixed_dictionaries(
    {"key": word, "operator": st.just("Exists")},
    optional={"effect": st.sampled_from(["NoSchedule", "NoExecute"])},
) | st.fixed_dictionaries(
    {
        "key": word,
        "operator": st.just("Exists"),
        "effect": st.just("NoExecute"),
        "tolerationSeconds": st.integers(0, 99) | st.just(30.0),
    }
)
term = st.fixed_dictionaries(
    {"matchExpressions": st.just([{"key": "k", "operator": "In", "values": ["a"]}])}
)
affinity = st.fixed_dictionaries(
    {},
    optional={
        "nodeAffinity": st.fixed_dictionaries(
            {
                "requiredDuringSchedulingIgnoredDuringExecution": st.fixed_dictionaries(
                    {"nodeSelectorTerms": st.lists(term, min_size=1, max_size=2)}
                )
            }
        ),
        "podAntiAffinity": st.just(
            {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1.0, "podAffinityTerm": {"topologyKey": "zone"}}
                ]
            }
        ),
    },
)
task = st.fixed_dictionaries(
    {},
    optional={
        "resources": st.just({"limits": {"nvidia.com/gpu": "2", "memory": "8G"}}),
        "tolerations": st.lists(toleration, max_size=2),
        "nodeSelector": st.dictionaries(keys, word, max_size=2),
        "affinity": affinity | st.none(),
        "env": st.lists(
            st.fixed_dictionaries({"name": variable, "value": st.text(character, max_size=4)}),
            max_size=2,
        ),
        "volumes": st.just([{"name": "d", "persistentVolumeClaim": {"claimName": "d"}}]),
        "volumeMounts": st.just([]),
    },
)
patch = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.just({"labels": {"p": "1"}}),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "runtimeClassName": word,
                "tolerations": st.lists(toleration, max_size=2),
                "terminationGracePeriodSeconds": st.integers(1, 300) | st.just(60.0),
                "containers": st.just([{"name": "pytorch", "ports": [{"containerPort": 9.0e3}]}]),
            },
        ),
    },
)
artifact = st.builds(
    SimpleNamespace,
    uri=st.sampled_from(["s3://b/x", "gs://b/x", "/a/b"]),
    metadata=st.sampled_from([{}, {"storage_uri": "pvc://claim/d"}, {"storage_uri": "pvc://d"}]),
)
image = st.from_regex(r"[a-z]{1,5}(:[0-9])?", fullmatch=True)
optional_inputs = {
    "name": st.text(character, max_size=5).map(lambda s: f"a{s}"),
    "namespace": word,
    "command": st.lists(scalar, max_size=3).filter(lambda c: not c or str(c[0]).strip()),
    "args": st.lists(scalar, max_size=3),
    "env": st.dictionaries(
        variable, scalar | st.just({"fieldRef": {"fieldPath": "metadata.name"}}), max_size=3
    ),
    "num_nodes": st.integers(1, 50) | st.just(4.0),
    "nproc_per_node": st.sampled_from(["", "auto", "gpu", "cpu", "1", "8"]),
    "cpu": st.sampled_from(["", "500m", "4", "1.5"]),
    "memory": quantity,
    "gpus_per_node": st.integers(0, 8),
    "gpu_resource": st.sampled_from(["nvidia.com/gpu", "amd.com/gpu"]),
    "shm_size": quantity | st.just("0"),
    "output_uri": st.sampled_from(
        ["pvc://claim", "pvc://claim/a/b", "s3://bucket/x", "gs://bucket", "minio://bucket/y"]
    ),
    "key": word,
    "output_secret": word,
    "resume_from": st.sampled_from(["", "pvc://claim/j", "pvc://other/j", "s3://bucket/j"]),
    "service_account": word,
    "image_pull_secrets": st.lists(word, max_size=2),
    "image_pull_policy": st.sampled_from(["", "Always", "Never", "IfNotPresent"]),
    "run_as_root": st.booleans(),
    "run_as_user": st.integers(0, 2000),
    "security_context": st.sampled_from([{}, {"fsGroup": 5.0}, {"fsGroup": None}]),
    "node_selector": st.dictionaries(keys, word, max_size=2),
    "tolerations": st.lists(toleration, max_size=2),
    "affinity": affinity,
    "labels": st.dictionaries(keys, word, max_size=2),
    "annotations": st.dictionaries(keys, scalar, max_size=2),
    "istio_injection": st.booleans(),
    "backoff_limit": st.integers(-1, 50),
    "retry_same_error": st.booleans(),
    "ttl_seconds": st.just(-1) | st.integers(120, 10**6),
    "clean_pod_policy": st.sampled_from(["Running", "All", "Keep"]),
    "active_deadline": st.integers(0, 10**6),
    "restart_policy": st.sampled_from(["OnFailure", "Never", "Always", "ExitCode"]),
    "pod_template_patch": patch,
    "task_config": task,
    "hyperparameters": st.dictionaries(keys, scalar, max_size=3),
    "queue_timeout": st.integers(0, 10**6),
    "start_timeout": st.integers(0, 10**6),
    "timeout": st.integers(0, 10**6),
    "cleanup": st.sampled_from(["on_failure", "always", "never"]),
    "scheduling": st.sampled_from(
        [
            {},
            {"priority_class": "high"},
            {"scheduler": "kueue", "queue": "q"},
            {"scheduler": "volcano", "queue": "q"},
            {"scheduler": "coscheduling", "schedule_timeout": 60.0},
            {"scheduler": "kai", "gang": False},
            {"scheduler": "yunikorn", "gang": False},
        ]
    ),
    "placement": st.sampled_from(
        [
            {},
            {"same": "rack", "pack": True},
            {"spread": {"domain": "node", "required": True}},
            {"rdma": {"count": 2.0, "hca": "mlx5"}, "tolerations": [{"operator": "Exists"}]},
        ]
    ),
    "elastic": st.sampled_from(
        [
            {},
            {"max_nodes": 60.0},
            {"rdzv_backend": "etcd", "rdzv_host": "e", "rdzv_conf": {"timeout": 60.0}},
        ]
    ),
    "source": st.sampled_from([{}, {"files": {"a/b.py": ""}}, {"uri": "pvc://other/code"}]),
    "dataset_names": st.lists(word.filter(bool), max_size=3, unique=True),
    **dict.fromkeys(SLOTS, st.none() | artifact),
}


def with_gpus(inputs: dict[str, Any]) -> dict[str, Any]:
    """A process for each GPU needs some, and a pod has no more processes than GPUs."""
    of_task = inputs.get("task_config", {}).get("resources")
    if inputs.get("nproc_per_node") in ("8", "cpu") and (inputs.get("gpus_per_node") or of_task):
        return inputs | {"nproc_per_node": "auto"}
    if inputs.get("nproc_per_node") != "gpu":
        return inputs
    return inputs | {"gpus_per_node": inputs.get("gpus_per_node") or 1}


inputs_strategy = st.fixed_dictionaries({"image": image}, optional=optional_inputs).map(with_gpus)


def test_the_manifests_are_made_from_every_input_that_there_is() -> None:
    assert {"image", *optional_inputs} == {*inputs_of(PyTorchJobInputs), *SLOTS}


@settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=80)
@given(inputs_strategy)
def test_every_manifest_that_the_inputs_can_make_is_valid_and_has_no_unknown_field(
    check_crd: Check, inputs: dict[str, Any]
) -> None:
    parsed = parse_inputs(**inputs)
    made = manifest(parsed, job_name="j", labels={"l": "1"}, annotations={}, owner=OWNER)
    check_crd("pytorchjobs", made)
    assert_admitted(made, parsed.num_nodes)


def assert_admitted(made: dict[str, Any], nodes: int) -> None:
    """What the operator's webhook and the API server demand beyond the schema."""
    replicas = made["spec"]["pytorchReplicaSpecs"]
    assert replicas.get("Master", {"replicas": 1})["replicas"] == 1
    assert sum(r["replicas"] for r in replicas.values()) == nodes
    for replica in replicas.values():
        pod = replica["template"]["spec"]
        assert [c["name"] for c in pod["containers"]].count("pytorch") == 1
        volumes = [v["name"] for v in pod.get("volumes", [])]
        assert len(volumes) == len(set(volumes))
        for container in pod["containers"]:
            assert container["image"]
            paths = [m["mountPath"] for m in container.get("volumeMounts", [])]
            assert len(paths) == len(set(paths))
            names = [v["name"] for v in container["env"]]
            assert len(names) == len(set(names))
