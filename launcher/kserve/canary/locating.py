"""Finds where a canary and the stable revision beside it are asked, each alone."""

from __future__ import annotations

import time

from kfp_pytorch.launcher.constants import INFERENCE_SERVICE, SERVICE
from kfp_pytorch.launcher.kserve.awaited import find
from kfp_pytorch.launcher.kserve.canary import addresses, spec
from kfp_pytorch.launcher.kserve.deploy import DeployFailed, Timing
from kfp_pytorch.launcher.kserve.names import title
from kfp_pytorch.launcher.kserve.rollout import base_url
from kfp_pytorch.launcher.kubernetes import objects
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.objects import Object


def beside(kube: Kube, service: Object, timing: Timing) -> tuple[str, str]:
    """Return the base URLs of the canary and of the stable revision, within the cluster.

    Raises DeployFailed: Knative gave them none.
    """
    if spec.find(service):
        stable = base_url(service, internal=True) or base_url(service, internal=False)
        made = None
        if not addresses.is_in_cluster(stable):
            made = find(kube, SERVICE, spec.deployment_name(objects.name(service)))
        return addresses.of_canary(service, made), stable
    deadline = time.monotonic() + timing.url_grace
    name = objects.name(service)
    while True:
        canary, stable = (addresses.of_tag(service, tag) for tag in ("latest", "prev"))
        if canary and stable:
            return canary, stable
        if time.monotonic() > deadline:
            raise DeployFailed(
                f"{title(kube.namespace, name)} has a canary, but its status has no "
                f"address for it alone {timing.url_grace:.0f} s later. KServe makes one where the "
                f"annotation {spec.TAG_ANNOTATION} is 'true', as it is in spec.predictor: look "
                "whether an administrator's configuration keeps annotations from Knative "
                "(serviceAnnotationDisallowedList). The service was left as it is."
            )
        time.sleep(timing.poll_interval)
        service = find(kube, INFERENCE_SERVICE, name) or service
