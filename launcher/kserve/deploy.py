"""Creates or changes an InferenceService; `kserve.wait` waits until the new revision serves.

A live service is never deleted, whatever happens: not on failure, not on a signal.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from kfp_pytorch.launcher.constants import (
    INFERENCE_SERVICE,
    KEDA_SCALED_OBJECT,
    KNATIVE_REVISION,
    Kind,
)
from kfp_pytorch.launcher.errors import InputError, StepError
from kfp_pytorch.launcher.kserve.awaited import find, find_deployment
from kfp_pytorch.launcher.kserve.canary import spec
from kfp_pytorch.launcher.kserve.canary.plan import Plan, plan
from kfp_pytorch.launcher.kserve.manifest import ServiceInputs
from kfp_pytorch.launcher.kserve.names import (
    AUTOSCALER_ANNOTATION,
    MODE_ANNOTATION,
    MODES,
    not_written,
    title,
)
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


def apply(kube: Kube, inputs: ServiceInputs, timing: Timing) -> Plan:
    """Creates the service, or changes the one that is there.

    `timing`: how long a deletion may take. Returns what was done, with the service as it is now.
    Raises Refused: validation or a webhook refused it; the message has its text. Raises InputError:
    a canary was asked for where there can be none. Raises DeployFailed: an old service of this name
    is still being deleted, or the cluster has no KServe.
    """
    started = time.monotonic()
    while True:
        try:
            return _applied(kube, inputs, timing, started + timing.deletion_timeout)
        except api_errors.KindAbsent as error:
            if time.monotonic() - started > timing.kind_grace:
                raise DeployFailed(f"{error.message} Is KServe installed?") from error
            time.sleep(timing.poll_interval)


def _applied(kube: Kube, inputs: ServiceInputs, timing: Timing, deadline: float) -> Plan:
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
        made = plan(inputs, existing, _mode(kube, existing, inputs))
        wanted = made.service
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
            return replace(made, service=existing)
        try:
            return replace(made, service=_written(kube, wanted, existing))
        except (api_errors.AlreadyExists, api_errors.Conflict, api_errors.NotFound) as error:
            if isinstance(error, api_errors.NotFound) and not existing:
                # What a create does not find is its namespace.
                raise
            if time.monotonic() > deadline:
                what, said = inputs.title(kube.namespace), error.server_message
                raise DeployFailed(not_written(what, inputs.service_name, said)) from error
            # KServe's controller writes too: read, change and write again.
            time.sleep(timing.confirm_interval)


def _check_knative(kube: Kube, wanted: Object, timing: Timing) -> None:
    """Refuse Knative mode where there is no Knative: KServe's status would stay empty."""
    mode = str(dig(wanted, "metadata", "annotations", MODE_ANNOTATION) or "")
    if MODES.get(mode) == "Knative" and not _is_served(kube, KNATIVE_REVISION, timing):
        name = str(dig(wanted, "metadata", "name"))
        raise InputError(
            f"{title(kube.namespace, name)} is to run in mode {mode!r}, but the "
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


def _mode(kube: Kube, existing: Object | None, inputs: ServiceInputs) -> str:
    """The mode of a service; one whose status does not say may have a Deployment that does."""
    if existing is None or inputs.canary_traffic_percent < 0:
        return ""
    found = mode_of(existing)
    return found or ("Standard" if find_deployment(kube, inputs.service_name) else "")


def _written(kube: Kube, wanted: Object, existing: Object | None) -> Object:
    if existing is None:
        return kube.create(INFERENCE_SERVICE, wanted, unknown_fields="Strict")
    no_canaries = InputError(
        f"canary_traffic_percent is 0, but the InferenceServices of this cluster have no "
        f"spec.{spec.NAME}, which KServe has since 0.20: the service was left as it is. Ask an "
        "administrator to update KServe with its CustomResourceDefinitions, leave "
        "canary_traffic_percent at -1, or use a service in Knative mode."
    )
    try:
        written = kube.replace(INFERENCE_SERVICE, wanted, unknown_fields="Strict")
    except api_errors.ApiError as error:
        if f'unknown field "spec.{spec.NAME}' in error.server_message:
            raise no_canaries from error
        raise
    if spec.find(wanted) and not spec.find(written):
        raise no_canaries
    return written
