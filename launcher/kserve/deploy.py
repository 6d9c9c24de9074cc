"""Creates or changes an InferenceService; `kserve.wait` waits until the new revision serves.

A live service is never deleted, whatever happens: not on failure, not on a signal.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from kfp_pytorch.launcher.constants import (
    DEPLOYMENT,
    INFERENCE_SERVICE,
    KEDA_SCALED_OBJECT,
    KNATIVE_REVISION,
    Kind,
)
from kfp_pytorch.launcher.errors import InputError, StepError
from kfp_pytorch.launcher.kserve.deploy_inputs import no_raw_canary
from kfp_pytorch.launcher.kserve.manifest import ServiceInputs, manifest
from kfp_pytorch.launcher.kserve.names import AUTOSCALER_ANNOTATION, MODE_ANNOTATION, MODES
from kfp_pytorch.launcher.kserve.rollout import mode_of, stopped
from kfp_pytorch.launcher.kserve.spec.compare import is_in_place
from kfp_pytorch.launcher.kubernetes import api_errors
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.objects import Object, dig
from kfp_pytorch.launcher.runtime.printing import log


class DeployFailed(StepError):
    """The new revision does not serve."""


@dataclass(frozen=True)
class Timing:
    """How often and how long the cluster is polled. All in seconds but for `confirmations`.

    Attributes:
        unavailable_after: A read that takes longer found the server unavailable; its time does not
            count against any limit.
        kind_grace: How long KServe's kind may be unknown to the server, which may have started just
            now.
    """

    poll_interval: float = 0.5  # between two reads
    slow_poll_interval: float = 3.0  # the same after the first minute
    pull_interval: float = 10.0  # between two looks at what image is pulled
    confirmations: int = 3  # how many reads in a row must find the new revision serving
    confirm_interval: float = 0.25  # between those
    unavailable_after: float = 5.0
    url_grace: float = 15.0  # how long a service may be Ready without a URL
    refusal_grace: float = 10.0  # how long KServe's refusal must last; it may be of the spec before
    load_grace: float = 120.0  # how long KServe must say that the new model failed to load
    deletion_timeout: float = 300.0  # how long an old service's deletion may take
    kind_grace: float = 20.0


def apply(kube: Kube, inputs: ServiceInputs, timing: Timing) -> Object:
    """Creates the service, or changes the one that is there.

    `timing`: how long a deletion may take. Raises Refused: validation or a webhook refused it; the
    message has its text. Raises InputError: a canary was asked for where all traffic would go to
    it. Raises DeployFailed: an old service of this name is still being deleted, or the cluster has
    no KServe.
    """
    started = time.monotonic()
    while True:
        try:
            return _applied(kube, inputs, timing, started + timing.deletion_timeout)
        except api_errors.KindAbsent as error:
            if time.monotonic() - started > timing.kind_grace:
                raise DeployFailed(f"{error.message} Is KServe installed?") from error
            time.sleep(timing.poll_interval)


def _applied(kube: Kube, inputs: ServiceInputs, timing: Timing, deadline: float) -> Object:
    while True:
        existing = find(kube, INFERENCE_SERVICE, inputs.service_name)
        if existing and dig(existing, "metadata", "deletionTimestamp"):
            if time.monotonic() > deadline:
                raise DeployFailed(
                    f"{inputs.title(kube.namespace)} was deleted but is "
                    f"still there after {timing.deletion_timeout:.0f} s. A finalizer holds it: "
                    f"{dig(existing, 'metadata', 'finalizers')}."
                )
            time.sleep(timing.poll_interval)
            continue
        if existing and inputs.canary_traffic_percent >= 0:
            _refuse_raw_canary(kube, existing, inputs)
        wanted = manifest(inputs, existing)
        _check_knative(kube, wanted, timing)
        _check_keda(kube, wanted, timing)
        halted = stopped(wanted)
        if halted:
            raise DeployFailed(
                f"{inputs.title(kube.namespace)} would serve nothing: {halted}. "
                "It was left as it is."
            )
        if existing and is_in_place(existing, wanted):
            log(f"{inputs.title(kube.namespace)} is already as wanted")
            return existing
        try:
            if existing:
                return kube.replace(INFERENCE_SERVICE, wanted, unknown_fields="Strict")
            return kube.create(INFERENCE_SERVICE, wanted, unknown_fields="Strict")
        except (api_errors.AlreadyExists, api_errors.Conflict, api_errors.NotFound) as error:
            if isinstance(error, api_errors.NotFound) and not existing:
                # What a create does not find is its namespace.
                raise
            if time.monotonic() > deadline:
                raise _write_conflict(kube, inputs, error) from error
            # KServe's controller writes too: read, change and write again.
            time.sleep(timing.confirm_interval)


def _check_knative(kube: Kube, wanted: Object, timing: Timing) -> None:
    """Refuse Knative mode where there is no Knative: KServe's status would stay empty."""
    mode = str(dig(wanted, "metadata", "annotations", MODE_ANNOTATION) or "")
    if MODES.get(mode) == "Knative" and not _is_served(kube, KNATIVE_REVISION, timing):
        name = dig(wanted, "metadata", "name")
        raise InputError(
            f"InferenceService {kube.namespace}/{name} is to run in mode {mode!r}, but the "
            f"cluster has no Knative Serving (no {KNATIVE_REVISION.plural}."
            f"{KNATIVE_REVISION.group}), so KServe could make nothing of it. Set "
            "deployment_mode to 'Standard', or ask an administrator to install Knative Serving."
        )


def _check_keda(kube: Kube, wanted: Object, timing: Timing) -> None:
    """Refuse KEDA as the autoscaler where there is no KEDA: KServe could make nothing of it."""
    scaler = dig(wanted, "metadata", "annotations", AUTOSCALER_ANNOTATION)
    if scaler == "keda" and not _is_served(kube, KEDA_SCALED_OBJECT, timing):
        raise InputError(
            f"autoscaler is 'keda', but the cluster has no KEDA (no {KEDA_SCALED_OBJECT.plural}."
            f"{KEDA_SCALED_OBJECT.group}): leave autoscaler out, so that an HPA scales by cpu or "
            "memory, or ask an administrator to install KEDA."
        )


def _is_served(kube: Kube, kind: Kind, timing: Timing) -> bool:
    """Whether the server has a kind; one that has only just started does not list every one yet."""
    deadline = time.monotonic() + timing.refusal_grace
    while not kube.serves(kind):
        if time.monotonic() > deadline:
            return False
        time.sleep(timing.poll_interval)
    return True


def _write_conflict(kube: Kube, inputs: ServiceInputs, error: api_errors.ApiError) -> DeployFailed:
    return DeployFailed(
        f"{inputs.title(kube.namespace)} could not be written: another client "
        f"changes it all the time: {error.server_message}.\nFind out who (kubectl get "
        f"inferenceservice {inputs.service_name} -o yaml --show-managed-fields), stop that and "
        "start the step again."
    )


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
    names = (f"{service}-{component}", f"{service}-{component}-default")
    return next(filter(None, (find(kube, DEPLOYMENT, name) for name in names)), None)


def _refuse_raw_canary(kube: Kube, existing: Object, inputs: ServiceInputs) -> None:
    raw = mode_of(existing) == "Standard" or (
        not mode_of(existing) and find_deployment(kube, inputs.service_name)
    )
    if raw:
        because = f"service {inputs.service_name!r} is in Standard mode"
        raise InputError(no_raw_canary(inputs.canary_traffic_percent, because))
