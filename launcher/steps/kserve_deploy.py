"""The step `kserve_deploy`: a model becomes an InferenceService whose new revision serves."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from kfp_pytorch.launcher.errors import CannotObserve
from kfp_pytorch.launcher.kserve import rollout
from kfp_pytorch.launcher.kserve.awaited import Awaited
from kfp_pytorch.launcher.kserve.canary import spec
from kfp_pytorch.launcher.kserve.canary.awaited import AwaitedCanary
from kfp_pytorch.launcher.kserve.canary.locating import beside
from kfp_pytorch.launcher.kserve.canary.plan import Plan
from kfp_pytorch.launcher.kserve.deploy import Timing, apply
from kfp_pytorch.launcher.kserve.manifest import (
    ServiceInputs,
    check_host,
    claim_warning,
    components,
    parse_inputs,
)
from kfp_pytorch.launcher.kserve.wait import Waiter
from kfp_pytorch.launcher.kubernetes.client import Kube, connect
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.runtime import stopping
from kfp_pytorch.launcher.runtime.artifact import Artifact, write
from kfp_pytorch.launcher.runtime.printing import log
from kfp_pytorch.launcher.runtime.stopping import Stopper
from kfp_pytorch.launcher.steps.claims import check_claim


class Outputs(NamedTuple):
    """The output parameters."""

    url: str
    cluster_url: str
    service_name: str
    revision: str
    canary_url: str
    stable_url: str


@dataclass(frozen=True)
class Served:
    """A revision that serves.

    Attributes:
        service: The InferenceService.
        beside: The base URLs of the canary alone and of the stable revision alone; empty where
            there is no canary.
    """

    service: Object
    beside: tuple[str, str] = ("", "")


def run(service: Artifact, model: Artifact | None = None, **inputs: Any) -> Outputs:
    """Deploys a model and waits until it serves.

    `service`: is filled in with what serves. `model`: the model; its metadata says where it lies;
    None where the input `storage_uri` does. Returns where the service answers and which revision
    does. Raises InputError: an input cannot work. Raises DeployFailed: the new revision does not
    serve; the message says why. Raises CannotObserve: the cluster did not answer for too long.
    Raises ApiError: the cluster refused it; the message says why.
    """
    uri, metadata = (model.uri, model.metadata) if model else (None, {})
    checked = parse_inputs(uri, metadata, **inputs)
    kube = connect(checked.namespace, notify=log)
    served = deploy(kube, checked, Timing(), stopping.current())
    about = describe(served, checked, kube.namespace)
    service.metadata.update(about)
    write(service, json.dumps(about, ensure_ascii=False, indent=2))
    return outputs(served, checked)


def deploy(kube: Kube, inputs: ServiceInputs, timing: Timing, stopper: Stopper) -> Served:
    """Does what `run` does, with everything given, but for the outputs.

    `stopper`: reports what a signal leaves behind; a live service is never deleted.
    """
    what = inputs.title(kube.namespace)
    stopper.set_left_in_place(f"{what} was not changed")
    for component in components(inputs):
        check_host(inputs.service_name, kube.namespace, component)
    uri = inputs.source.uri
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
        made = apply(kube, inputs, timing)
        log(f"{what}: revision {inputs.spec_hash}")
        if made.note:
            log(made.note)
        stopper.set_left_in_place(
            f"{what} is left as it is, and may still serve this step's revision {inputs.spec_hash}"
        )
        service = Waiter(kube, _awaited(inputs, made, warning), timing).run()
        served = Served(service, beside(kube, service, timing) if made.is_canary else ("", ""))
    except CannotObserve as error:
        raise CannotObserve(
            f"{error.message}\n{what} was left as it is: it may still serve this step's "
            "revision. The next attempt of this step continues from what it finds."
        ) from error
    _say_where(kube, served, inputs)
    return served


def _awaited(inputs: ServiceInputs, made: Plan, warning: str) -> Awaited:
    """What is waited for: in Standard mode a canary has a place of its own in the spec."""
    kind = AwaitedCanary if made.is_canary and spec.find(made.service) else Awaited
    return kind(
        service_name=inputs.service_name,
        uid=str(made.service["metadata"]["uid"]),
        spec_hash=inputs.spec_hash,
        timeout=inputs.timeout,
        components=components(inputs),
        warning=warning,
    )


def _say_where(kube: Kube, served: Served, inputs: ServiceInputs) -> None:
    found = outputs(served, inputs)
    if found.canary_url:
        log(f"the canary is at {found.canary_url}, the stable revision at {found.stable_url}")
    log(f"serves at {found.url}")
    in_standard = rollout.mode_of(served.service) == "Standard"
    if in_standard and not rollout.reachable_from_outside(found.url):
        # Requests go to a transformer first.
        name, path = f"{inputs.service_name}-{components(inputs)[-1]}", urlsplit(found.url).path
        log(rollout.port_forward_advice(name, kube.namespace, path))


def outputs(served: Served, inputs: ServiceInputs) -> Outputs:
    """Return where a service answers, and which revision does."""
    outside, inside = _addresses(served.service)
    canary, stable = (
        base and rollout.predict_url(base, inputs.source.path) for base in served.beside
    )
    return Outputs(
        url=rollout.predict_url(outside, inputs.source.path),
        cluster_url=rollout.predict_url(inside, inputs.source.path),
        service_name=inputs.service_name,
        revision=inputs.spec_hash,
        canary_url=canary,
        stable_url=stable,
    )


def _addresses(service: Object) -> tuple[str, str]:
    """Return the URL for callers outside of the cluster and for those within."""
    outside = rollout.base_url(service, internal=False)
    inside = rollout.base_url(service, internal=True)
    return outside or inside, inside or outside


def describe(served: Served, inputs: ServiceInputs, namespace: str) -> dict[str, str]:
    """Return the metadata of the artifact `service`, in which each value is a text."""
    outside, inside = _addresses(served.service)
    made = outputs(served, inputs)
    return {
        "name": inputs.service_name,
        "namespace": namespace,
        "revision": inputs.spec_hash,
        "mode": rollout.mode_of(served.service) or "Standard",
        "url": made.url,
        "cluster_url": made.cluster_url,
        "base_url": outside,
        "cluster_base_url": inside,
        "canary_url": made.canary_url,
        "stable_url": made.stable_url,
        "model_name": inputs.source.name,
        "protocol": inputs.source.protocol,
        "storage_uri": inputs.source.uri,
    }
