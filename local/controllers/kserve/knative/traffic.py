"""Which Revision gets how much of the traffic in Knative mode. No I/O.

Source: kserve v0.20, `reconcilers/knative/ksvc_reconciler.go` (`createKnativeService`) and
`inference_service_status.go` (`PropagateStatus`).
"""

from __future__ import annotations

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object

# Gives the newest revision a tag, and with it an address of its own.
TAG_ANNOTATION = "serving.kserve.io/enable-tag-routing"


def component(service: Object, created: str, ready: str) -> Object:
    """The predictor's status: its revisions and their shares, without addresses.

    `created`, `ready`: the newest Revision, and the newest that is ready; empty for none.
    """
    before = ((service.get("status") or {}).get("components") or {}).get("predictor") or {}
    rolled = before.get("latestRolledoutRevision", "")
    traffic = [
        {**each, "revisionName": each.get("revisionName", ready)}
        for each in _wanted(service, rolled)
        if each.get("revisionName", ready)
    ]
    rolled, previous = _rolled_out(before, traffic, created, ready)
    found = {
        "latestCreatedRevision": created,
        "latestReadyRevision": ready,
        "latestRolledoutRevision": rolled,
        "previousRolledoutRevision": previous,
        "traffic": traffic,
    }
    return {key: value for key, value in found.items() if value}


def _wanted(service: Object, rolled: str) -> list[Object]:
    """The targets of the Knative Service; one without a name is the newest that is ready."""
    predictor = service["spec"]["predictor"]
    percent = predictor.get("canaryTrafficPercent")
    annotations = {
        **(objects.metadata(service).get("annotations") or {}),
        **(predictor.get("annotations") or {}),
    }
    tag = {"tag": "latest"} if annotations.get(TAG_ANNOTATION) == "true" else {}
    if percent is None or not rolled:
        return [{"latestRevision": True, "percent": 100, **tag}]
    latest = {"latestRevision": True, "percent": percent, **tag}
    if percent == 100:
        return [latest]
    rest = {"latestRevision": False, "percent": 100 - percent, "tag": "prev"}
    return [latest, {**rest, "revisionName": rolled}]


def _rolled_out(before: Object, traffic: list[Object], created: str, ready: str) -> tuple[str, str]:
    """The Revision that last had all of the traffic, and the one before it."""
    rolled = before.get("latestRolledoutRevision", "")
    previous = before.get("previousRolledoutRevision", "")
    for each in traffic:
        if not each["latestRevision"] or each["revisionName"] != ready:
            continue
        if rolled != ready:
            if each["percent"] == 100:
                rolled, previous = ready, rolled
        elif ready == created and each["percent"] < 100 and previous and _has_all(traffic, ready):
            # Taken back after it had all: the one before it serves again.
            rolled = previous
    return rolled, previous


def _has_all(traffic: list[Object], revision: str) -> bool:
    shares = [int(each["percent"]) for each in traffic if each["revisionName"] == revision]
    return sum(shares) == 100
