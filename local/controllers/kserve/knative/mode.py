"""An InferenceService in Knative mode: Revisions, each with a Deployment and a share of traffic.

KServe makes a Knative Service of it, Knative the rest; here this module does both. A Revision that
is neither asked nor tagged has no pods; another one has its least number of them, and at least one:
nothing is scaled to zero. Addresses that Knative makes of tags are ports of this machine.
"""

from __future__ import annotations

from datetime import datetime

from kfp_pytorch.launcher.constants import DEPLOYMENT, KNATIVE_REVISION
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.controllers.kserve.knative import revisions, traffic
from kfp_pytorch.local.controllers.kserve.knative.status import Observed, status
from kfp_pytorch.local.controllers.kserve.parts import Parts
from kfp_pytorch.local.controllers.kubernetes.status import write

ADDRESS = ""


class Knative:
    """Makes InferenceServices of one cluster run in Knative mode."""

    # What of a pod's status starts a reconciliation.
    watched = ("initContainerStatuses", "containerStatuses")

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def apply(self, service: Object) -> str:
        """Create or change what belongs to a service; returns the runtime's name."""
        deployment = self._parts.deployment_of(service)
        wanted = revisions.next_revision(service, deployment, self._revisions(service))
        if wanted:
            self._parts.api.create(KNATIVE_REVISION, wanted)
        known = self._revisions(service)
        component = self._component(service)
        needed = {objects.name(known[-1]), component.get("latestReadyRevision")}
        needed |= {each["revisionName"] for each in component.get("traffic", [])}
        least = max(1, service["spec"]["predictor"].get("minReplicas", 1))
        for revision in known:
            replicas = least if objects.name(revision) in needed else 0
            self._run(revision, service, replicas)
        return objects.name(self._parts.runtime_of(service))

    def _run(self, revision: Object, service: Object, replicas: int) -> None:
        name, api = revisions.deployment_name(revision), self._parts.api
        existing = api.find(DEPLOYMENT, objects.namespace(service), name)
        if existing is None:
            api.create(DEPLOYMENT, revisions.deployment_of(revision, service, replicas))
        elif existing["spec"]["replicas"] != replicas:
            changed = objects.copy(existing)
            changed["spec"]["replicas"] = replicas
            api.update(DEPLOYMENT, changed)

    def status(self, service: Object, now: datetime, runtime: str = "", error: str = "") -> Object:
        """The service's status. Writes those of its Revisions."""
        known = [self._written(service, revision, now) for revision in self._revisions(service)]
        url, component = self.route(service), self._component(service)
        for each in component.get("traffic", []):
            if each.get("tag"):
                each["url"] = self._route_tag(service, each["tag"], each["revisionName"])
        newest = known[-1] if known else {}
        pods = self._pods(service, objects.name(newest)) if known else ()
        return status(service, Observed(component, newest, pods, url, runtime, error), now)

    def _written(self, service: Object, revision: Object, now: datetime) -> Object:
        """A Revision, once its status is written."""
        api, name = self._parts.api, objects.name(revision)
        where = objects.namespace(service), revisions.deployment_name(revision)
        pods = self._pods(service, name)
        found = revisions.status(revision, api.find(DEPLOYMENT, *where) or {}, pods, now)
        return write(api, KNATIVE_REVISION, revision, found)

    def route(self, service: Object) -> str:
        """Pass requests to the Revisions by their shares; returns the URL, which stays."""
        shares = self._component(service).get("traffic", [])
        for each in shares:
            if each.get("tag"):
                self._route_tag(service, each["tag"], each["revisionName"])
        tags = [each["tag"] for each in shares if each.get("tag")]
        self._parts.close(service, but=[ADDRESS, *tags])
        targets = [
            self._parts.target(each["percent"], self._pods(service, each["revisionName"]))
            for each in shares
        ]
        return self._parts.route(service, ADDRESS, targets)

    def _route_tag(self, service: Object, tag: str, revision: str) -> str:
        target = self._parts.target(100, self._pods(service, revision))
        return self._parts.route(service, tag, [target])

    def _component(self, service: Object) -> Object:
        known = self._revisions(service)
        ready = [objects.name(each) for each in known if revisions.is_ready(each)]
        created = objects.name(known[-1]) if known else ""
        return traffic.component(service, created, ready[-1] if ready else "")

    def _revisions(self, service: Object) -> list[Object]:
        found = self._parts.api.snapshot(KNATIVE_REVISION, objects.namespace(service))
        own = [each for each in found if objects.is_controlled_by(each, service)]
        return revisions.in_order(own)

    def _pods(self, service: Object, revision: str) -> tuple[Object, ...]:
        return self._parts.pods(service, **{revisions.REVISION_LABEL: revision})
