"""The step `kserve_deploy`: a Model becomes an InferenceService whose new revision serves."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import urlsplit

from kfp_pytorch.launcher.errors import CannotObserve
from kfp_pytorch.launcher.kserve import rollout
from kfp_pytorch.launcher.kserve.deploy import Timing, apply
from kfp_pytorch.launcher.kserve.manifest import (
    ServiceInputs,
    check_host,
    claim_warning,
    parse_inputs,
)
from kfp_pytorch.launcher.kserve.wait import Waiter
from kfp_pytorch.launcher.kubernetes.client import Kube, connect
from kfp_pytorch.launcher.runtime import stopping
from kfp_pytorch.launcher.runtime.artifact import Artifact
from kfp_pytorch.launcher.runtime.printing import log
from kfp_pytorch.launcher.runtime.stopping import Stopper
from kfp_pytorch.launcher.steps.claims import check_claim


class Outputs(NamedTuple):
    """The output parameters."""

    url: str
    cluster_url: str
    service_name: str
    revision: str


def run(model: Artifact, **inputs: Any) -> Outputs:
    """Deploys a model and waits until it serves.

    `model`: the model; its metadata says where it lies. Returns where the service answers and which
    revision does. Raises InputError: an input cannot work. Raises DeployFailed: the new revision
    does not serve; the message says why. Raises CannotObserve: the cluster did not answer for too
    long. Raises ApiError: the cluster refused it; the message says why.
    """
    checked = parse_inputs(model.uri, model.metadata, **inputs)
    return deploy(connect(checked.namespace, notify=log), checked, Timing(), stopping.current())


def deploy(kube: Kube, inputs: ServiceInputs, timing: Timing, stopper: Stopper) -> Outputs:
    """Does what `run` does, with everything given.

    `stopper`: reports what a signal leaves behind; a live service is never deleted. Returns where
    the service answers and which revision does.
    """
    what = inputs.title(kube.namespace)
    stopper.set_left_in_place(f"{what} was not changed")
    check_host(inputs.service_name, kube.namespace)
    uri = str(inputs.predictor["model"]["storageUri"])
    if uri.startswith("pvc://"):
        advice = (
            "A predictor can mount a claim of its own namespace only: deploy to the namespace of "
            "the claim."
        )
        check_claim(kube, urlsplit(uri).netloc, f"The model lies at {uri!r}", advice)
    warning = claim_warning(inputs, kube.namespace)
    if warning:
        log(f"warning: {warning}")
    stopper.set_left_in_place(
        f"whether {what} was changed is not known: look at it, or start the step again"
    )
    try:
        uid = str(apply(kube, inputs, timing)["metadata"]["uid"])
        log(f"{what}: revision {inputs.spec_hash}")
        stopper.set_left_in_place(
            f"{what} is left as it is, and may still serve this step's revision {inputs.spec_hash}"
        )
        service = Waiter(kube, inputs, timing, uid).run()
    except CannotObserve as error:
        raise CannotObserve(
            f"{error.message}\n{what} was left as it is: it may still serve this step's "
            "revision. The next attempt of this step continues from what it finds."
        ) from error
    outside = rollout.base_url(service, internal=False)
    inside = rollout.base_url(service, internal=True)
    outputs = Outputs(
        url=rollout.predict_url(outside or inside, inputs.service_name, inputs.protocol),
        cluster_url=rollout.predict_url(inside or outside, inputs.service_name, inputs.protocol),
        service_name=inputs.service_name,
        revision=inputs.spec_hash,
    )
    log(f"serves at {outputs.url}")
    if rollout.mode_of(service) == "Standard" and not rollout.reachable_from_outside(outputs.url):
        path = urlsplit(outputs.url).path
        log(rollout.port_forward_advice(f"{inputs.service_name}-predictor", kube.namespace, path))
    return outputs
