"""An InferenceService in Standard mode: a Deployment, a Service and an address, and its canaries'.

Source: kserve v0.20, `pkg/controller/v1beta1/inferenceservice/components/predictor.go`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from urllib.parse import urlsplit

from kfp_pytorch.launcher.constants import DEPLOYMENT, SERVICE, Kind
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.registry import AUTOSCALER
from kfp_pytorch.local.controllers.kserve import canary, predictor
from kfp_pytorch.local.controllers.kserve.parts import Parts
from kfp_pytorch.local.controllers.kserve.status import Observed, status

ADDRESS = ""


class Standard:
    """Makes InferenceServices of one cluster run in Standard mode."""

    # What of a pod's status starts a reconciliation: not what the serving container does.
    watched = ("initContainerStatuses",)

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def apply(self, service: Object) -> str:
        """Create or change what belongs to a service; returns the runtime's name."""
        variants = [canary.stable(service), *canary.canaries(service)]
        for at, variant in enumerate(variants):
            deployment = self._parts.deployment_of(variant)
            self._parts.write(DEPLOYMENT, deployment)
            self._parts.write(AUTOSCALER, predictor.make_autoscaler(variant))
            made = predictor.make_service(variant, deployment)
            if at:
                made["spec"] |= _elsewhere(self._route_canary(service, variant))
            self._parts.create_missing(SERVICE, made)
        self._delete_others(service, [predictor.name_of(each) for each in variants])
        return objects.name(self._parts.runtime_of(service))

    def status(self, service: Object, now: datetime, runtime: str = "", error: str = "") -> Object:
        """The service's status."""
        deployment = self._deployment(service)
        pods, url = self._pods(service), self.route(service)
        names = [(each, each["spec"]["predictor"]["name"]) for each in canary.canaries(service)]
        available = {
            name: bool((self._deployment(each).get("status") or {}).get("availableReplicas"))
            for each, name in names
        }
        found = canary.statuses(service, available)
        return status(service, Observed(deployment, pods, url, runtime, error, found), now)

    def route(self, service: Object) -> str:
        """Pass requests to the pods that are ready; returns the service's URL, which stays."""
        variants = canary.canaries(service)
        for variant in variants:
            self._route_canary(service, variant)
        self._parts.close(service, but=[ADDRESS, *map(predictor.name_of, variants)])
        return self._parts.route(service, ADDRESS, [self._parts.target(100, self._pods(service))])

    def _route_canary(self, service: Object, variant: Object) -> str:
        target = self._parts.target(100, self._pods(variant))
        return self._parts.route(service, predictor.name_of(variant), [target])

    def _deployment(self, variant: Object) -> Object:
        where = objects.namespace(variant), predictor.name_of(variant)
        return self._parts.api.find(DEPLOYMENT, *where) or {}

    def _pods(self, variant: Object) -> tuple[Object, ...]:
        return self._parts.pods(variant, app=predictor.app_label(variant))

    def _delete_others(self, service: Object, names: list[str]) -> None:
        """Delete what canaries that are not wanted any more have left."""
        for kind, name in self._owned(service):
            if name not in names:
                self._parts.api.delete(kind, objects.namespace(service), name)

    def _owned(self, service: Object) -> Iterator[tuple[Kind, str]]:
        own = {predictor.POD_LABEL: objects.name(service), "component": "predictor"}.items()
        for kind in (DEPLOYMENT, SERVICE):
            for each in list(self._parts.api.snapshot(kind, objects.namespace(service))):
                if own <= objects.labels(each).items() and not objects.is_terminating(each):
                    yield kind, objects.name(each)


def _elsewhere(url: str) -> Object:
    """The spec of a Service whose name leads to an address of this machine."""
    port = {"port": urlsplit(url).port, "protocol": "TCP"}
    return {"type": "ExternalName", "externalName": "localhost", "ports": [port]}
