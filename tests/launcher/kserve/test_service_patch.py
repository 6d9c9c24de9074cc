"""What a patch of the service may change, and when a service already is as wanted."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import SPEC_HASH_LABEL
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.kserve.manifest import manifest, parse_inputs
from kfp_pytorch.launcher.kserve.spec.compare import is_in_place

Object = dict[str, Any]


def made(existing: Object | None = None, **inputs: Any) -> Object:
    return manifest(parse_inputs("s3://bkt/m", {}, service_name="d", **inputs), existing)


def test_a_patch_is_merged_last_and_makes_a_revision_of_its_own() -> None:
    patch = {
        "metadata": {"labels": {"team": "b"}, "annotations": {"note": "x"}},
        "spec": {
            "predictor": {
                "minReplicas": None,
                "containerConcurrency": 4,
                "model": {"env": [{"name": "A", "$patch": "delete"}], "runtimeVersion": "24.01"},
            },
            "explainer": {"containers": [{"name": "e", "image": "e:1"}]},
        },
    }
    plain, patched = (
        made(env={"A": 1, "B": 2}, labels={"team": "a"}, **more)
        for more in ({}, {"service_patch": patch})
    )
    assert patched["metadata"]["labels"]["team"] == "b"
    assert patched["metadata"]["annotations"]["note"] == "x"
    predictor = patched["spec"]["predictor"]
    assert "minReplicas" not in predictor
    assert predictor["containerConcurrency"] == 4
    assert predictor["model"]["env"] == [{"name": "B", "value": "2"}]
    assert predictor["model"]["runtimeVersion"] == "24.01"
    assert patched["spec"]["explainer"]["containers"][0]["image"] == "e:1"
    assert predictor["annotations"] != plain["spec"]["predictor"]["annotations"]
    assert patched["metadata"]["name"] == "d"


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"metadata": {"name": "e"}}, "may not change metadata.name; use the input service_name"),
        ({"metadata": {"namespace": "e"}}, "metadata.namespace; use the input namespace"),
        ({"metadata": {"ownerReferences": []}}, "metadata.ownerReferences, only labels and"),
        ({"metadata": {"annotations": {"serving.kserve.io/stop": "true"}}}, "would never end"),
        (
            {"metadata": {"annotations": {"serving.kserve.io/deploymentMode": "Knative"}}},
            "use deployment_mode",
        ),
        ({"status": {}}, "has 'status'"),
        ({"kind": "Pod"}, "has 'kind'"),
        ({"spec": {"predictor": None}}, "may not remove predictor"),
        ({"spec": {"predictor": {"annotations": None}}}, SPEC_HASH_LABEL),
        ({"spec": {"predictor": {"annotations": {SPEC_HASH_LABEL: "x"}}}}, SPEC_HASH_LABEL),
        ({"spec": {"transformer": {"annotations": {SPEC_HASH_LABEL: "x"}}}}, SPEC_HASH_LABEL),
        ({"spec": {"predictor": {"canaryTrafficPercent": 5}}}, "use canary_traffic_percent"),
        ({"spec": {"canary": []}}, "use canary_traffic_percent"),
        ({"spec": {"predictor": {"model": "x"}}}, "service_patch.spec.predictor.model is a str"),
        ({"spec": {"predictor": {"$patch": "replace"}}}, r"predictor.\$patch is not known"),
        ({"spec": [1]}, "service_patch.spec must be an object"),
    ],
)
def test_a_patch_may_not_change_what_the_step_knows_the_service_by(
    patch: Object, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        made(service_patch=patch)


def rewritten(service: Object) -> Object:
    """A service as KServe's webhook writes it: filled in, empty values left out."""
    found = copy.deepcopy(service)
    found["metadata"] |= {"uid": "u", "annotations": {"modelFormat": "kfp-pytorch"}}
    predictor = found["spec"]["predictor"]
    predictor["automountServiceAccountToken"] = False
    server = predictor.get("model") or predictor["containers"][0]
    amounts = {"cpu": "500m", "memory": "1536Mi"}
    server["resources"] = {"requests": amounts, "limits": amounts}
    server["name"] = server.get("name", "")
    for variable in server["env"]:
        if not variable["value"]:
            del variable["value"]
    return found


@pytest.mark.parametrize("more", [{}, {"container": {"image": "a:1"}}])
def test_a_service_that_kserve_rewrote_is_as_wanted_but_not_one_that_a_person_did(
    more: Object,
) -> None:
    inputs: Object = {"cpu": "0.5", "memory": "1.5Gi", "env": {"A": "", "B": "1"}} | more
    existing = rewritten(made(**inputs))
    assert is_in_place(existing, made(existing, **inputs))

    def changed(field: str, value: Any) -> bool:
        other = copy.deepcopy(existing)
        server = (
            other["spec"]["predictor"].get("model") or other["spec"]["predictor"]["containers"][0]
        )
        server[field] = value
        return not is_in_place(other, made(other, **inputs))

    assert changed("resources", {"requests": {"cpu": "1"}, "limits": {}})
    assert changed("env", [{"name": "B", "value": "1"}])
    assert changed("env", [])


def test_no_replicas_are_not_the_same_as_the_default_of_them() -> None:
    wanted = made(min_replicas=0)
    existing = copy.deepcopy(wanted)
    del existing["spec"]["predictor"]["minReplicas"]
    assert not is_in_place(existing, wanted)
