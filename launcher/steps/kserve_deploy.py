"""The step `kserve_deploy`: a Model becomes an InferenceService whose new revision serves."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from kfp_pytorch.launcher.constants import CLAIM
from kfp_pytorch.launcher.errors import CannotObserve, InputError
from kfp_pytorch.launcher.kserve.deploy import Timing, apply
from kfp_pytorch.launcher.kserve.manifest import (
    ServiceInputs,
    check_host,
    claim_warning,
    parse_inputs,
)
from kfp_pytorch.launcher.kserve.rollout import (
    base_url,
    mode_of,
    port_forward_advice,
    predict_url,
    reachable_from_outside,
)
from kfp_pytorch.launcher.kserve.wait import Waiter
from kfp_pytorch.launcher.kubernetes.api_errors import ApiError, NotFound
from kfp_pytorch.launcher.kubernetes.client import Kube, connect
from kfp_pytorch.launcher.runtime import stopping
from kfp_pytorch.launcher.runtime.printing import log
from kfp_pytorch.launcher.runtime.stopping import Stopper


class Outputs(NamedTuple):
    """The output parameters."""

    url: str
    cluster_url: str
    service_name: str
    revision: str


class ModelArtifact(Protocol):
    """What the step needs of the Model."""

    uri: str
    metadata: dict[str, Any]


def run(model: ModelArtifact, **inputs: Any) -> Outputs:
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
    what = f"InferenceService {kube.namespace}/{inputs.name}"
    stopper.set_left_in_place(f"{what} was not changed")
    check_host(inputs.name, kube.namespace)
    _check_claim(kube, str(inputs.predictor["model"]["storageUri"]))
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
    outside, inside = base_url(service, internal=False), base_url(service, internal=True)
    outputs = Outputs(
        url=predict_url(outside or inside, inputs.name, inputs.protocol),
        cluster_url=predict_url(inside or outside, inputs.name, inputs.protocol),
        service_name=inputs.name,
        revision=inputs.spec_hash,
    )
    log(f"serves at {outputs.url}")
    if mode_of(service) == "Standard" and not reachable_from_outside(outputs.url):
        path = urlsplit(outputs.url).path
        log(port_forward_advice(f"{inputs.name}-predictor", kube.namespace, path))
    return outputs


def _check_claim(kube: Kube, uri: str) -> None:
    """Refuses a claim that is not there: the predictor's pod would wait for ever."""
    parts = urlsplit(uri)
    if parts.scheme != "pvc":
        return
    try:
        kube.get(CLAIM, parts.netloc)
    except NotFound:
        raise InputError(
            f"The model lies at {uri!r}, but namespace {kube.namespace!r} has no "
            f"PersistentVolumeClaim {parts.netloc!r}. A predictor can mount a claim of its own "
            "namespace only: deploy to the namespace of the claim."
        ) from None
    except CannotObserve:
        raise
    except ApiError as error:
        log(f"could not check the claim {parts.netloc!r}: {error.short}")
