"""A revision that is to serve: what is looked at, and what is said of it."""

from __future__ import annotations

from dataclasses import dataclass

from kfp_pytorch.launcher.constants import DEPLOYMENT, KNATIVE_REVISION, SPEC_HASH_LABEL, Kind
from kfp_pytorch.launcher.kserve import names
from kfp_pytorch.launcher.kserve.rollout import Rollout, created_revision, mode_of, rollout
from kfp_pytorch.launcher.kubernetes import api_errors, objects
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.objects import Object, dig

LEFT = "The service was left as it is."


@dataclass(frozen=True)
class Awaited:
    """The revision of `spec.predictor`, in either mode.

    Attributes:
        components: Those of the service that have the revision's hash.
        warning: What may explain that it does not serve; or empty.
    """

    service_name: str
    uid: str  # the service's
    spec_hash: str
    timeout: int  # seconds
    components: tuple[str, ...] = ("predictor",)
    warning: str = ""

    def title(self, namespace: str) -> str:
        """Name the service with its kind."""
        return names.title(namespace, self.service_name)

    def carried(self, service: Object) -> str:
        """Return the hash of the revision that the service is to serve."""
        return str(dig(service, "spec", "predictor", "annotations", SPEC_HASH_LABEL) or "")

    def read(self, kube: Kube, service: Object) -> tuple[Object | None, Rollout]:
        """Read what runs the revision; None where there is nothing yet. Returns its state too."""
        workloads = {each: self._workload(kube, service, each) for each in self.components}
        first, *others = self.components
        rest = {component: workloads[component] for component in others}
        return workloads[first], rollout(service, workloads[first], self.spec_hash, rest)

    def _workload(self, kube: Kube, service: Object, component: str) -> Object | None:
        if mode_of(service) == "Knative":
            created = created_revision(service, component)
            return find(kube, KNATIVE_REVISION, created) if created else None
        return find_deployment(kube, self.service_name, component)

    def is_untouched(self, service: Object, workload: Object | None) -> bool:
        """Whether KServe has made nothing of the revision, and says nothing of it."""
        return bool(service) and not workload and not dig(service, "status", "conditions")

    def serves_now(self, service: Object, workload: Object | None) -> str:
        """Say what serves now: whether users are affected."""
        if mode_of(service) == "Knative":
            created = created_revision(service)
            ready = dig(service, "status", "components", "predictor", "latestReadyRevision")
            previous, new = bool(ready) and ready != created, bool(ready) and ready == created
        else:
            status = dig(workload, "status") or {}
            template = ("spec", "template", "metadata", "annotations", SPEC_HASH_LABEL)
            is_fresh = dig(workload, *template) == self.spec_hash
            updated = int(status.get("updatedReplicas") or 0) if is_fresh else 0
            available = int(status.get("availableReplicas") or 0)
            previous = available > 0 and int(status.get("replicas") or 0) > updated
            new = available > 0
        if previous:
            return f"The previous revision still serves. {LEFT}"
        if new and objects.condition(service, "Ready").get("status") == "True":
            return f"The new revision serves, but not as asked for. {LEFT}"
        if new:
            return (
                "The new revision's pods are ready, but the service is not, so requests may not "
                f"reach them. {LEFT}"
            )
        return f"Nothing serves. {LEFT}"


def find(kube: Kube, kind: Kind, name: str) -> Object | None:
    """Read an object; None where there is none of that name."""
    try:
        return kube.get(kind, name)
    except api_errors.NotFound:
        return None


def find_deployment(kube: Kube, service: str, component: str = "predictor") -> Object | None:
    """Read what runs a component in Standard mode; None where there is none yet.

    KServe keeps the name that an older KServe gave it (v0.20, predictor.go).
    """
    called = (f"{service}-{component}", f"{service}-{component}-default")
    return next(filter(None, (find(kube, DEPLOYMENT, name) for name in called)), None)
