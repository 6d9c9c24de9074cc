from __future__ import annotations

import re
from typing import Any

import pytest
from harness.faults.actions import Forbidden
from hypothesis import given
from hypothesis import strategies as st

from kfp_pytorch.launcher.constants import (
    POD,
    RUN_ID_LABEL,
    SPEC_HASH_LABEL,
    TENSORBOARD,
    WORKFLOW,
    Kind,
)
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.runtime.identity import identify, job_name, label_value, whoami

URI = "minio://mlpipeline/v2/artifacts/run/model"
DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


@pytest.mark.parametrize(
    "readable",
    [
        "My_Pipeline Run #3",
        "ends-with-a-dash-",
        "3f2b8c1e-6a0d-4d9b-9d5f-0d1f2a3b4c5d",
        "x" * 200,
        "---a---",
        "Ünïcode",
    ],
)
@pytest.mark.parametrize("suffix", ["-master-0", "-worker-0", "-worker-100", "-worker-9998"])
def test_every_pod_of_a_job_has_a_name_that_a_service_may_have(readable: str, suffix: str) -> None:
    name = job_name(readable, URI, suffix)
    assert DNS_1035.fullmatch(name)
    assert len(name + suffix) <= 63


@given(st.text(min_size=1, max_size=80), st.text(min_size=1, max_size=80))
def test_any_name_with_a_letter_becomes_a_valid_one(readable: str, uri: str) -> None:
    assert DNS_1035.fullmatch(job_name(f"a{readable}", uri, "-worker-11"))


def test_two_long_names_and_two_steps_do_not_collide() -> None:
    long = "p" * 80
    assert job_name(long, f"{URI}/1", "-master-0") != job_name(long, f"{URI}/2", "-master-0")
    assert job_name(long, URI, "-master-0") == job_name(long, URI, "-master-0")


def test_a_name_of_nothing_readable_and_a_suffix_without_room_are_refused() -> None:
    with pytest.raises(InputError, match="a-z"):
        job_name("###", URI, "-master-0")
    with pytest.raises(InputError, match="at most 63"):
        job_name("a", URI, f"-worker-{'9' * 50}")


def test_a_step_without_an_artifact_uri_has_no_identity() -> None:
    with pytest.raises(InputError, match="no URI"):
        identify("a", "", "-master-0", "", {})


def test_labels_name_the_run_and_change_with_the_spec() -> None:
    one = identify("a", URI, "-master-0", "run/1", {"image": "a"})
    two = identify("a", URI, "-master-0", "run/1", {"image": "b"})
    assert one.labels[RUN_ID_LABEL] == "run-1"
    assert one.labels[SPEC_HASH_LABEL] != two.labels[SPEC_HASH_LABEL]
    assert one.name == two.name
    assert one.owns({"metadata": {"labels": dict(two.labels)}})
    assert not one.owns({"metadata": {"labels": {}}})
    assert not one.owns({"metadata": {}})


def test_a_label_value_is_cut_and_cleaned() -> None:
    assert label_value("-a b/c-") == "a-b-c"
    assert len(label_value("a" * 100)) == 63


def own_pod(hands: Any, kind: Kind) -> dict[str, str]:
    """The step's own pod, controlled by an object of a kind."""
    create, api = hands.server.call, hands.server.api
    named = {"metadata": {"name": "owner", "namespace": "default"}}
    owner = create(api.create, kind, named | {"spec": {"logspath": "pvc://c"}})
    reference = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": "owner",
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    pod = {
        "metadata": {
            "name": "step-pod",
            "namespace": "default",
            "labels": {"pipeline/runid": "run-7"},
            "ownerReferences": [reference],
        },
        "spec": {"containers": [{"name": "main", "image": "python"}]},
    }
    made = create(api.create, POD, pod)
    return {"KFP_POD_NAME": "step-pod", "KFP_POD_UID": made["metadata"]["uid"]}


def test_the_owner_is_the_workflow_and_blocks_nothing(kube: Any, hands: Any) -> None:
    step = whoami(kube, own_pod(hands, WORKFLOW))
    assert step.run_id == "run-7"
    assert step.owner == {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "name": "owner",
        "uid": hands.find(WORKFLOW, "owner")["metadata"]["uid"],
        "controller": False,
        "blockOwnerDeletion": False,
    }


def test_another_controllers_pod_gives_the_job_no_owner(kube: Any, hands: Any) -> None:
    step = whoami(kube, own_pod(hands, TENSORBOARD))
    assert step.owner is None
    assert step.run_id == "run-7"


def test_outside_of_a_pod_nothing_is_asked(kube: Any, hands: Any) -> None:
    assert whoami(kube, {}).owner is None
    assert hands.count("get") == 0


def test_a_pod_that_may_not_be_read_or_is_another_is_only_noted(kube: Any, hands: Any) -> None:
    hands.fault(Forbidden(), "get", "*/pods/step-pod", times=None)
    environ = own_pod(hands, WORKFLOW)
    assert "may not get pods" in whoami(kube, environ).note
    assert whoami(kube, environ | {"KFP_POD_UID": "of-an-older-pod"}).owner is None
    assert "could not be read" in whoami(kube, {"KFP_POD_NAME": "never-was"}).note
