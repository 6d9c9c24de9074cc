"""What this machine can never run is refused at once, with the way out."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_pytorch.launcher.constants import (
    CLAIM,
    CONFIG_MAP,
    JAXJOB,
    PADDLEJOB,
    POD,
    PYTORCHJOB,
    TFJOB,
    XGBOOSTJOB,
    Kind,
)
from kfp_pytorch.local.apiserver.registry import NODE, SECRET
from kfp_pytorch.local.apiserver.store.api import Api, ApiError
from kfp_pytorch.local.controllers.kubernetes import node, one_machine

Object = dict[str, Any]


@pytest.fixture
def api() -> Api:
    """A cluster on a machine of 4 CPUs, 8 GiB and 2 GPUs."""
    made = Api()
    node.create(made, 2)

    def sized(obj: Object) -> None:
        amounts = {"cpu": "4", "memory": "8Gi", "pods": "110", "nvidia.com/gpu": "2"}
        obj["status"] |= {"capacity": amounts, "allocatable": amounts}

    made.mutate(NODE, "", node.NODE_NAME, sized, "status")
    one_machine.install(made)
    return made


def job(limits: Object | None = None, workers: int = 0, **spec: Any) -> Object:
    container = {"name": "pytorch", "image": "i", "command": ["python"]}
    container |= {"resources": {"limits": limits or {}}}
    container |= {key: spec.pop(key) for key in ("env", "command") if key in spec}
    template = {"spec": {"containers": [container], **spec}}
    specs = {"Master": {"replicas": 1, "template": template}}
    specs |= {"Worker": {"replicas": workers, "template": template}} if workers else {}
    metadata = {"name": "j", "namespace": "default"}
    return {"metadata": metadata, "spec": {"pytorchReplicaSpecs": specs}}


def refusal(api: Api, made: Object) -> str:
    with pytest.raises(ApiError) as caught:
        api.create(PYTORCHJOB, made)
    assert caught.value.code == 403
    return caught.value.message


def test_more_gpus_than_there_are_are_refused_with_how_to_run_without(api: Api) -> None:
    said = refusal(api, job({"nvidia.com/gpu": "8"}))
    assert said.startswith('admission webhook "one-machine.kfp-pytorch.local" denied the request: ')
    assert "ask for 8 nvidia.com/gpu, and this machine has 2" in said
    assert "--local --cpu" in said
    assert "gpus_per_node" in said


@pytest.mark.parametrize(
    ("limits", "workers", "words"),
    [
        ({"cpu": "5"}, 0, "ask for 5 cpu, and this machine has 4"),
        ({"memory": "9Gi"}, 0, "ask for 9Gi memory, and this machine has 8Gi"),
        ({"cpu": "1500m"}, 2, "ask for 4500m cpu (3 pods together), and this machine has 4"),
        ({"amd.com/gpu": "1"}, 0, "ask for 1 amd.com/gpu, and this machine has 0"),
    ],
)
def test_all_pods_of_a_job_have_to_fit_together(
    api: Api, limits: Object, workers: int, words: str
) -> None:
    assert words in refusal(api, job(limits, workers))


def test_a_job_that_fits_is_taken(api: Api) -> None:
    limits = {"nvidia.com/gpu": "1", "cpu": "2", "memory": "4Gi"}
    made = api.create(PYTORCHJOB, job(limits, 1))
    made["metadata"]["labels"] = {"a": "b"}
    api.update(PYTORCHJOB, made)


def test_a_placement_that_only_another_node_has_is_refused(api: Api) -> None:
    assert "fits no node" in refusal(api, job(nodeSelector={"gpu": "a100"}))
    api.create(PYTORCHJOB, job(nodeSelector={"kubernetes.io/hostname": "local"}))


def test_a_scheduler_that_is_not_here_is_named(api: Api) -> None:
    assert "for the scheduler 'volcano'" in refusal(api, job(schedulerName="volcano"))
    api.create(PYTORCHJOB, job(schedulerName="default-scheduler"))


def test_an_image_of_its_own_entry_point_is_refused(api: Api) -> None:
    assert "'pytorch' has no command" in refusal(api, job(command=[]))


def secret_env(**more: Any) -> list[Object]:
    reference = {"name": "s", "key": "token", **more}
    return [{"name": "TOKEN", "valueFrom": {"secretKeyRef": reference}}]


def test_what_a_pod_refers_to_is_named_where_it_is_not_there(api: Api) -> None:
    volumes = [
        {"name": "a", "configMap": {"name": "c"}},
        {"name": "b", "persistentVolumeClaim": {"claimName": "p"}},
        {"name": "d", "secret": {"secretName": "other", "optional": True}},
    ]
    said = refusal(api, job(env=secret_env(), volumes=volumes))
    assert "no Secret 's'" in said
    assert "--secrets FILE" in said
    assert "no ConfigMap 'c'" in said
    assert "no PersistentVolumeClaim 'p'" in said
    assert "--claim p=FOLDER" in said
    assert "other" not in said
    for kind, name, data in ((SECRET, "s", {"token": "eA=="}), (CONFIG_MAP, "c", {"k": "v"})):
        api.create(kind, {"metadata": {"name": name, "namespace": "default"}, "data": data})
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    api.create(CLAIM, {"metadata": {"name": "p", "namespace": "default"}, "spec": claim})
    api.create(PYTORCHJOB, job(env=secret_env(), volumes=volumes))


def test_a_missing_key_is_named_unless_it_is_optional(api: Api) -> None:
    api.create(SECRET, {"metadata": {"name": "s", "namespace": "default"}, "data": {"a": "eA=="}})
    assert "the Secret 's' has no key 'token'; it has a." in refusal(api, job(env=secret_env()))
    api.create(PYTORCHJOB, job(env=secret_env(optional=True)))


def test_a_pod_of_no_job_is_refused_with_words_that_no_waiting_mends(api: Api) -> None:
    container = {"name": "m", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "3"}}}
    metadata = {"generateName": "server-", "namespace": "default"}
    with pytest.raises(ApiError) as caught:
        api.create(POD, {"metadata": metadata, "spec": {"containers": [container]}})
    said = caught.value.message
    assert said.startswith('pods "server-" is forbidden: maximum usage per Pod: ')
    assert "3 nvidia.com/gpu, and this machine has 2" in said


@pytest.mark.parametrize("kind", [TFJOB, XGBOOSTJOB, JAXJOB, PADDLEJOB])
def test_a_kind_that_nothing_here_runs_is_refused_with_what_to_use(api: Api, kind: Kind) -> None:
    template = {"spec": {"containers": [{"name": "a", "image": "i"}]}}
    fields = ("tf", "xgb", "jax", "paddle")
    specs = {f"{field}ReplicaSpecs": {"Worker": {"template": template}} for field in fields}
    with pytest.raises(ApiError) as caught:
        api.create(kind, {"metadata": {"name": "j", "namespace": "default"}, "spec": specs})
    assert f"runs no {kind.kind}: " in caught.value.message
    assert "--kubeconfig FILE" in caught.value.message
