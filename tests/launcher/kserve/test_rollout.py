"""What the status of an InferenceService, and of what runs it, tells of a rollout."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import SPEC_HASH_LABEL
from kfp_pytorch.launcher.kserve.rollout import mode_of, predict_url, rollout

Object = dict[str, Any]


def service(ready: str = "True", mode: str = "Standard", **status: Any) -> Object:
    conditions = [{"type": "Ready", "status": ready, "reason": "R", "message": "M"}]
    return {"status": {"deploymentMode": mode, "conditions": conditions, **status}}


def deployment(
    carried: str = "new", generation: int = 2, observed: int = 2, wanted: int = 1, **counts: int
) -> Object:
    whole = {"replicas": wanted, "updatedReplicas": wanted, "availableReplicas": wanted} | counts
    annotations = {SPEC_HASH_LABEL: carried}
    return {
        "metadata": {"generation": generation},
        "spec": {"replicas": wanted, "template": {"metadata": {"annotations": annotations}}},
        "status": {"observedGeneration": observed, **whole},
    }


def test_a_whole_rollout_is_done() -> None:
    assert rollout(service(), deployment(), "new").done
    assert rollout(service(modelStatus={"transitionStatus": "UpToDate"}), deployment(), "new").done


@pytest.mark.parametrize(
    ("seen", "workload"),
    [
        pytest.param(service(), None, id="no Deployment"),
        pytest.param(service(), deployment("old"), id="the old spec, Ready since long"),
        pytest.param(service(), deployment(observed=1), id="not yet observed"),
        pytest.param(service(), deployment(replicas=2), id="an old pod is left"),
        pytest.param(service(), deployment(updatedReplicas=0), id="no new pod"),
        pytest.param(service(), deployment(availableReplicas=0), id="not available"),
        pytest.param(service(), deployment(wanted=3, updatedReplicas=2), id="two of three"),
        pytest.param(service("False"), deployment(), id="not Ready"),
        pytest.param(service("Unknown"), deployment(), id="unknown"),
        pytest.param({}, deployment(), id="no status"),
        pytest.param({"status": {}}, deployment(), id="empty status"),
        pytest.param(
            service(modelStatus={"transitionStatus": "InProgress"}), deployment(), id="loading"
        ),
    ],
)
def test_a_stale_or_half_rollout_is_not_done(seen: Object, workload: Object | None) -> None:
    state = rollout(seen, workload, "new")
    assert not state.done
    assert state.waits_for


def scaled(minimum: int, **annotations: str) -> Object:
    metadata = {"annotations": {f"serving.kserve.io/{k}": v for k, v in annotations.items()}}
    return service() | {"metadata": metadata, "spec": {"predictor": {"minReplicas": minimum}}}


def test_a_rollout_waits_for_the_replicas_that_the_autoscaler_adds() -> None:
    """KServe makes the Deployment with one replica, whole after seconds; the rest come later."""
    assert "1 of 2 made" in rollout(scaled(2), deployment(), "new").waits_for
    assert rollout(scaled(2), deployment(wanted=2), "new").done
    assert rollout(scaled(2), deployment(wanted=3), "new").done
    assert rollout(scaled(2, autoscalerClass="external"), deployment(), "new").done
    assert rollout(scaled(0), deployment(), "new").done


def knative(created: str, ready: str) -> Object:
    revisions = {"latestCreatedRevision": created, "latestReadyRevision": ready}
    return service(mode="", components={"predictor": revisions})


def revision(carried: str) -> Object:
    return {"metadata": {"annotations": {SPEC_HASH_LABEL: carried}}}


def test_a_knative_rollout_is_done_when_the_newest_revision_is_ours_and_ready() -> None:
    assert mode_of(knative("r-2", "r-1")) == "Knative"
    assert not rollout(knative("r-1", "r-1"), revision("old"), "new").done
    assert not rollout(knative("r-2", "r-1"), revision("new"), "new").done
    assert not rollout(knative("r-2", ""), revision("new"), "new").done
    assert rollout(knative("r-2", "r-2"), revision("new"), "new").done


def test_a_knative_revision_that_fails_is_waited_for_in_its_own_words() -> None:
    """Of an image that Knative cannot find there are no pods, which would tell."""
    words = 'Unable to fetch image "c:1": failed to resolve image to digest'
    failed = {"type": "Ready", "status": "False", "reason": "ContainerMissing", "message": words}
    state = rollout(
        knative("r-2", "r-1"), revision("new") | {"status": {"conditions": [failed]}}, "new"
    )
    assert state.waits_for == f"revision r-2 to be ready (so far r-1): {words}"


def test_a_knative_revision_that_is_ready_without_its_traffic_is_not_done() -> None:
    def to(*targets: Object, canary: int | None = None) -> Object:
        seen = knative("r-2", "r-2")
        seen["status"]["components"]["predictor"]["traffic"] = list(targets)
        return seen | {"spec": {"predictor": {"canaryTrafficPercent": canary}}}

    old = {"revisionName": "r-1", "percent": 100}
    state = rollout(to(old), revision("new"), "new")
    assert state.waits_for == "traffic to revision r-2: 0 % in place of 100 %"
    tenth = ({"revisionName": "r-1", "percent": 90}, {"revisionName": "r-2", "percent": 10})
    assert not rollout(to(*tenth), revision("new"), "new").done
    assert rollout(to(*tenth, canary=10), revision("new"), "new").done
    assert not rollout(to(*tenth, canary=5), revision("new"), "new").done
    assert not rollout(to(*tenth, canary=20), revision("new"), "new").done
    assert rollout(to(old, canary=0), revision("new"), "new").done
    assert rollout(to({"latestRevision": True, "percent": 100}), revision("new"), "new").done


def test_of_several_conditions_ready_the_last_to_change_counts() -> None:
    def ready(*pairs: tuple[str, str]) -> Object:
        told = [{"type": "Ready", "status": s, "lastTransitionTime": t} for t, s in pairs]
        return service() | {"status": {"deploymentMode": "Standard", "conditions": told}}

    for order in itertools.permutations((("12:00:01", "True"), ("12:00:02", "False"))):
        assert not rollout(ready(*order), deployment(), "new").done
    for order in itertools.permutations((("12:00:02", "True"), ("12:00:01", "False"))):
        assert rollout(ready(*order), deployment(), "new").done


def test_no_pods_are_whole_only_where_none_are_asked_for() -> None:
    assert not rollout(service(), deployment(wanted=0), "new").done
    asked = service() | {"spec": {"predictor": {"minReplicas": 0}}}
    assert rollout(asked, deployment(wanted=0), "new").done


@pytest.mark.parametrize(("least", "done"), [(0, True), (1, False)])
def test_a_model_that_was_scaled_to_zero_is_not_said_to_be_loading(least: int, done: bool) -> None:
    loading = {"modelStatus": {"transitionStatus": "InProgress"}}
    idle = knative("r-1", "r-1") | {"spec": {"predictor": {"minReplicas": least}}}
    idle["status"] |= loading
    assert rollout(idle, revision("new"), "new").done is done
    asked = service(**loading) | {"spec": {"predictor": {"minReplicas": least}}}
    assert rollout(asked, deployment(wanted=least), "new").done is done


def test_a_deployment_that_makes_no_progress_is_told_in_its_words() -> None:
    stuck = deployment(availableReplicas=0)
    words = 'ReplicaSet "digits-1" has timed out progressing.'
    late = {"type": "Progressing", "status": "False", "message": words}
    stuck["status"]["conditions"] = [late]
    assert rollout(service("False"), stuck, "new").waits_for.endswith(f": {words}")


def test_pods_that_are_refused_for_good_are_a_refusal_but_not_those_of_a_quota() -> None:
    def refused(words: str, carried: str = "new") -> str:
        stuck = deployment(carried, updatedReplicas=0, availableReplicas=0)
        stuck["status"]["conditions"] = [
            {"type": "ReplicaFailure", "status": "True", "message": words}
        ]
        return rollout(service("False"), stuck, "new").refusal

    account = 'error looking up service account team/me: serviceaccount "me" not found'
    assert refused(account) == account
    assert refused(account, carried="old") == ""
    assert refused("exceeded quota: gpus, used: nvidia.com/gpu=4") == ""


def test_a_service_that_somebody_stopped_is_refused_with_how_it_runs_again() -> None:
    halted = {"metadata": {"name": "d", "annotations": {"serving.kserve.io/stop": "true"}}}
    refusal = rollout(service("False") | halted, deployment(), "new").refusal
    assert "kubectl annotate inferenceservice d serving.kserve.io/stop-" in refusal


def test_kserves_refusal_is_passed_on_in_its_words() -> None:
    info = {"reason": "NoSupportingRuntime", "message": "No runtime found"}
    status = {"transitionStatus": "InvalidSpec", "lastFailureInfo": info}
    state = rollout(service("False", modelStatus=status), None, "new")
    assert state.refusal == "NoSupportingRuntime: No runtime found"


@pytest.mark.parametrize("base", ["http://h:8", "http://h:8/", "http://h:8/v1/models/d:predict"])
def test_the_predict_url_is_exact_whatever_path_kserve_gives(base: str) -> None:
    assert predict_url(base, "/v1/models/d:predict") == "http://h:8/v1/models/d:predict"
    assert predict_url(base, "/v2/models/d/infer") == "http://h:8/v2/models/d/infer"


def test_the_predict_url_keeps_the_path_that_a_gateway_routes_by() -> None:
    base = "http://gateway/serving/team/d"
    assert predict_url(base, "/v1/models/d:predict") == f"{base}/v1/models/d:predict"
