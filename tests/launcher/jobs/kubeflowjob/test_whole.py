"""Whole manifests: what is added, and what is refused before anything is made."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.jobs.registry import kind_of

Check = Callable[[str, dict[str, Any]], None]


def job(kind: str = "JAXJob", field: str = "jaxReplicaSpecs", **roles: Any) -> dict[str, Any]:
    names = {"TFJob": "tensorflow", "MPIJob": "mpi", "XGBoostJob": "xgboost", "PaddleJob": "paddle"}
    pod = {"containers": [{"name": names.get(kind, "jax"), "image": "mine:1"}]}
    given = roles or {"Worker": {"replicas": 2}}
    specs = {role: {"template": {"spec": copy.deepcopy(pod)}} | of for role, of in given.items()}
    return {"apiVersion": "kubeflow.org/v1", "kind": kind, "spec": {field: specs}}


def built(manifest: dict[str, Any], **inputs: Any) -> dict[str, Any]:
    kind = kind_of("kubeflow_job", {"manifest": manifest})
    checked = kind.parse_inputs(manifest=manifest, **inputs)
    return kind.build(checked, job_name="j", labels={"l": "1"}, annotations={}, owner=None)


def test_a_manifest_gets_identity_folder_and_limits_and_stays_as_it_is(check_crd: Check) -> None:
    given = job()
    given["metadata"] = {"name": "mine", "labels": {"team": "a"}, "annotations": {"n": "1"}}
    given["spec"]["runPolicy"] = {"backoffLimit": 1, "schedulingPolicy": {"minAvailable": 2}}
    before = copy.deepcopy(given)
    made = built(given, labels={"x": "y"}, output_uri="pvc://claim/a", key="k")
    check_crd("jaxjobs", made)
    assert given == before
    assert made["metadata"] == {
        "name": "j",
        "labels": {"team": "a", "x": "y", "l": "1"},
        "annotations": {"n": "1"},
    }
    assert made["spec"]["runPolicy"] == {
        "backoffLimit": 1,
        "cleanPodPolicy": "Running",
        "schedulingPolicy": {"minAvailable": 2},
        "ttlSecondsAfterFinished": 86_400,
    }
    pods = made["spec"]["jaxReplicaSpecs"]["Worker"]["template"]
    assert pods["metadata"]["labels"] == {"x": "y", "l": "1"}
    (container,) = pods["spec"]["containers"]
    env = {each["name"]: each["value"] for each in container["env"]}
    assert env["KFP_PYTORCH_OUTPUT"] == "/mnt/kfp-pytorch/output/a/k/j"
    assert pods["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "claim"}
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_what_is_said_of_a_manifest_s_job_is_read_from_it() -> None:
    given = job("MPIJob", "mpiReplicaSpecs", Launcher={}, Worker={"replicas": 3})
    given["spec"]["slotsPerWorker"] = 8
    given["metadata"] = {"namespace": "team"}
    inputs = kind_of("kubeflow_job", {"manifest": given}).parse_inputs(manifest=given)
    said = (inputs.image, inputs.num_nodes, inputs.nproc_per_node, inputs.namespace)
    assert said == ("mine:1", 3, "8", "team")


def test_the_older_place_of_the_clean_pod_policy_counts() -> None:
    given = job("MPIJob", "mpiReplicaSpecs", Launcher={}, Worker={"replicas": 1})
    given["spec"]["cleanPodPolicy"] = "All"
    assert built(given)["spec"]["runPolicy"]["cleanPodPolicy"] == "All"


def changed(**fields: Any) -> dict[str, Any]:
    return job() | fields


def with_pod(**spec: Any) -> dict[str, Any]:
    return job(Worker={"template": {"spec": spec}})


def with_policy(**policy: Any) -> dict[str, Any]:
    made = job()
    made["spec"]["runPolicy"] = policy
    return made


def with_slots(slots: Any) -> dict[str, Any]:
    made = job("MPIJob", "mpiReplicaSpecs", Launcher={}, Worker={"replicas": 1})
    made["spec"]["slotsPerWorker"] = slots
    return made


CONTAINER = {"name": "jax", "image": "i"}


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (changed(kind="Job"), "manifest.kind is 'Job'; it must be one of TFJob,"),
        (changed(kind="PyTorchJob"), "the component pytorch_job is for that kind"),
        (changed(kind=""), "kind is not set"),
        (changed(apiVersion="kubeflow.org/v2beta1"), "must be 'kubeflow.org/v1'"),
        (changed(extra=1), "manifest has the unknown field 'extra'"),
        (changed(spec={}), "manifest.spec.jaxReplicaSpecs is empty"),
        (changed(metadata={"uid": "1"}), "unknown field 'uid'"),
        (job(Master={}), "has no role 'Master'; it may have Worker"),
        (job(Worker={"replicas": 0}), "replicas is 0; it must be from 1 to"),
        (job(Worker={"restartPolicy": "Sometimes"}), "it must be one of OnFailure"),
        (job(Worker={"size": 1}), "unknown field 'size'"),
        (with_pod(), "must be called 'jax' in a JAXJob"),
        (with_pod(containers=[{"name": "main", "image": "i"}]), "has main; the container"),
        (with_pod(containers=[{"name": 7, "image": "i"}]), "has 7; the container"),
        (with_pod(containers=[{"name": "jax"}]), "'jax' has no image"),
        (with_pod(containers="x"), "containers is a str; it must be a list"),
        (with_pod(containers=[3]), "containers[0] is a int; it must be an object"),
        (with_pod(containers=[CONTAINER, CONTAINER]), "Two containers of the pod are called 'jax'"),
        (
            with_pod(containers=[CONTAINER | {"env": {"A": "1"}}]),
            "env is a dict; it must be a",
        ),
        (with_pod(containers=[CONTAINER | {"env": ["A=1"]}]), "env[0] is a str; it must be an"),
        (with_pod(containers=[CONTAINER | {"env": [{"value": "1"}]}]), "env has the name ''"),
        (with_pod(containers=[CONTAINER | {"volumeMounts": "x"}]), "volumeMounts is a str"),
        (with_pod(containers=[CONTAINER | {"args": "-m train"}]), "args must be a list of strings"),
        (with_pod(containers=[CONTAINER | {"resources": "x"}]), "resources must be an object"),
        (changed(metadata={"labels": ["x"]}), "manifest.metadata.labels must be an object"),
        (changed(metadata={"labels": {"a": "ü"}}), "manifest.metadata.labels['a'] is 'ü'"),
        (changed(metadata={"annotations": "x"}), "manifest.metadata.annotations must be"),
        (
            job(Worker={"template": {"metadata": {"labels": "x"}, "spec": {}}}),
            "containers has none",
        ),
        (with_policy(cleanPodPolicy="Some"), "runPolicy.cleanPodPolicy is 'Some'"),
        (with_policy(backoffLimit=1.5), "runPolicy.backoffLimit must be a whole number"),
        (with_policy(ttlSecondsAfterFinished=-1), "ttlSecondsAfterFinished is -1"),
        (with_policy(schedulingPolicy="gang"), "schedulingPolicy must be an object"),
        (with_policy(schedulingPolicy={"minAvailable": 1.5}), "minAvailable must be a whole"),
        (with_policy(schedulingPolicy={"minAvailable": 3}), "is 3 and the job has 2 pods"),
        (with_policy(ttlSecondsAfterFinished=0), "must be kept at least"),
        (
            with_pod(containers=[CONTAINER | {"env": [{"name": "KFP_PYTORCH_OUTPUT"}]}]),
            "may not set KFP_PYTORCH_OUTPUT: the launcher does",
        ),
        (
            with_pod(
                containers=[
                    CONTAINER
                    | {"volumeMounts": [{"name": "v", "mountPath": "/mnt/kfp-pytorch/output"}]}
                ],
                volumes=[{"name": "v", "emptyDir": {}}],
            ),
            "Two volumes are mounted at '/mnt/kfp-pytorch/output'",
        ),
        (
            job("MPIJob", "mpiReplicaSpecs", Launcher={}, Worker={}),
            "Worker.replicas is not set; give the number of workers",
        ),
        (
            job("MPIJob", "mpiReplicaSpecs", Worker={"replicas": 1}),
            "a MPIJob needs the role 'Launcher'",
        ),
        (
            job("MPIJob", "mpiReplicaSpecs", Launcher={"restartPolicy": "ExitCode"}),
            "the operator makes no pod of an MPIJob anew",
        ),
        (job("XGBoostJob", "xgbReplicaSpecs", Worker={}), "needs the role 'Master'"),
        (
            job("XGBoostJob", "xgbReplicaSpecs", Master={"replicas": 2}),
            "has one pod of the role 'Master', not 2",
        ),
        (
            job("TFJob", "tfReplicaSpecs", Chief={}, Master={}),
            "has one of the roles 'Chief' and 'Master', not both",
        ),
        (job("TFJob", "tfReplicaSpecs", PS={}), "needs pods that train"),
        (with_slots(0), "manifest.spec.slotsPerWorker is 0"),
        (with_slots("x"), "manifest.spec.slotsPerWorker must be a whole number"),
    ],
)
def test_a_manifest_that_could_not_run_is_refused(manifest: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        built(manifest)
    assert words in caught.value.message


def test_null_is_unset_and_numbers_among_texts_are_written_as_such(check_crd: Check) -> None:
    given = with_pod(
        containers=[
            CONTAINER
            | {"env": [{"name": "A", "value": 3.0}, {"name": "B", "value": None}]}
            | {"args": None, "volumeMounts": None, "resources": None}
        ],
        initContainers=None,
        volumes=None,
    )
    given["metadata"] = {"labels": None, "annotations": {"n": 1.0}}
    given["spec"]["runPolicy"] = {"backoffLimit": None, "ttlSecondsAfterFinished": 600.0}
    given["spec"]["jaxReplicaSpecs"]["Worker"] |= {"replicas": None, "restartPolicy": None}
    made = built(given)
    check_crd("jaxjobs", made)
    assert made["metadata"]["annotations"] == {"n": "1"}
    (container,) = made["spec"]["jaxReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["env"][:2] == [{"name": "A", "value": "3"}, {"name": "B"}]
    assert made["spec"]["jaxReplicaSpecs"]["Worker"]["replicas"] == 1


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"image": "i"}, "image is set, and so is manifest"),
        ({"num_nodes": 2}, "num_nodes is set"),
        ({"env": {"A": "1"}}, "env is set"),
        ({"kind": "TFJob"}, "kind is 'TFJob', and the manifest is of kind 'JAXJob'"),
        ({"task_config": {"env": [{"name": "A", "value": "1"}]}}, "The task has settings"),
    ],
)
def test_an_input_that_contradicts_the_manifest_is_refused(
    inputs: dict[str, Any], words: str
) -> None:
    kind = kind_of("kubeflow_job", {"manifest": job()})
    with pytest.raises(InputError) as caught:
        kind.parse_inputs(manifest=job(), **inputs)
    assert words in caught.value.message


def test_a_namespace_other_than_the_manifest_s_is_refused() -> None:
    given = job() | {"metadata": {"namespace": "a"}}
    with pytest.raises(InputError, match="namespace is 'b', and that of the manifest 'a'"):
        built(given, namespace="b")
