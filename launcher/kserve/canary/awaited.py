"""The canary of Standard mode, which is to be ready: what is looked at, and what is said of it."""

from __future__ import annotations

from dataclasses import dataclass

from kfp_pytorch.launcher.constants import DEPLOYMENT
from kfp_pytorch.launcher.kserve.awaited import LEFT, Awaited, find
from kfp_pytorch.launcher.kserve.canary import spec, state
from kfp_pytorch.launcher.kserve.rollout import Rollout
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.objects import Object, dig


@dataclass(frozen=True)
class AwaitedCanary(Awaited):
    """The canary of a service in Standard mode."""

    def title(self, namespace: str) -> str:
        """Name the canary with its service."""
        return f"The canary of {super().title(namespace)}"

    def carried(self, service: Object) -> str:
        """Return the hash of the revision that is to be the canary."""
        return spec.revision_of(dig(spec.find(service), "predictor"))

    def read(self, kube: Kube, service: Object) -> tuple[Object | None, Rollout]:
        """Read the canary's Deployment; None where there is none yet. Returns its state too."""
        deployment = find(kube, DEPLOYMENT, spec.deployment_name(self.service_name))
        return deployment, state.canary_rollout(service, deployment, self.spec_hash)

    def is_untouched(self, service: Object, workload: Object | None) -> bool:
        """Whether KServe has made nothing of the canary; the conditions are the service's own."""
        return bool(service) and not workload

    def serves_now(self, service: Object, workload: Object | None) -> str:  # noqa: ARG002
        """Say what serves now: the canary gets no traffic."""
        return (
            f"The canary gets no traffic: users are not affected. {LEFT} kserve_rollout with "
            "action='rollback' takes the canary away, and so does the next deployment."
        )
