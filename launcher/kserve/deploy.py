"""Creates or changes an InferenceService; `kserve.wait` waits until the new revision serves.

A live service is never deleted, whatever happens: not on failure, not on a signal.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from kfp_pytorch.launcher.constants import (
    DEPLOYMENT,
    INFERENCE_SERVICE,
    KNATIVE_REVISION,
    Kind,
)
from kfp_pytorch.launcher.errors import InputError, StepError
from kfp_pytorch.launcher.kserve.deploy_inputs import MODE_ANNOTATION, MODES, no_raw_canary
from kfp_pytorch.launcher.kserve.manifest import ServiceInputs, manifest
from kfp_pytorch.launcher.kserve.rollout import mode_of, stopped
from kfp_pytorch.launcher.kubernetes.api_errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    KindAbsent,
    NotFound,
)
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.objects import Object, dig
from kfp_pytorch.launcher.runtime.printing import log


class DeployFailed(StepError):
    """The new revision does not serve."""


@dataclass(frozen=True)
class Pace:
    """How often and how long the cluster is looked at. All in seconds but for `in_a_row`.

    Attributes:
        poll: Between two looks.
        slow_poll: The same after the first minute.
        in_a_row: How many looks in a row must find the new revision serving.
        settle: Between those.
        away: Of a read that takes longer, the server was unavailable; its time counts for nothing.
        url_grace: How long a service may be Ready without a URL.
        refusal_grace: How long KServe's refusal must last; it may be of the spec before.
        load_grace: How long KServe must say that the new model failed to load.
        deletion: How long an old service's deletion may take.
        kind_absent: How long KServe's kind may be unknown to the server, which may have started
            just now.
    """

    poll: float = 0.5
    slow_poll: float = 3.0
    in_a_row: int = 3
    settle: float = 0.25
    away: float = 5.0
    url_grace: float = 15.0
    refusal_grace: float = 10.0
    load_grace: float = 120.0
    deletion: float = 300.0
    kind_absent: float = 20.0


def apply(kube: Kube, inputs: ServiceInputs, pace: Pace) -> Object:
    """Creates the service, or changes the one that is there.

    Args:
        kube: The cluster.
        inputs: What is wanted.
        pace: How long a deletion may take.

    Returns:
        The service as the cluster took it.

    Raises:
        Refused: Validation or a webhook refused it; the message has its words.
        InputError: A canary was asked for where all traffic would go to it.
        DeployFailed: An old service of this name is being deleted and does not go, or the
            cluster has no KServe.
    """
    started = time.monotonic()
    while True:
        try:
            return _applied(kube, inputs, pace, started + pace.deletion)
        except KindAbsent as error:
            if time.monotonic() - started > pace.kind_absent:
                raise DeployFailed(f"{error.message} Is KServe installed?") from error
            time.sleep(pace.poll)


def _applied(kube: Kube, inputs: ServiceInputs, pace: Pace, deadline: float) -> Object:
    while True:
        existing = find(kube, INFERENCE_SERVICE, inputs.name)
        if existing and dig(existing, "metadata", "deletionTimestamp"):
            if time.monotonic() > deadline:
                raise DeployFailed(
                    f"InferenceService {kube.namespace}/{inputs.name} has been asked to go but "
                    f"still is there after {pace.deletion:.0f} s. A finalizer holds it: "
                    f"{dig(existing, 'metadata', 'finalizers')}."
                )
            time.sleep(pace.poll)
            continue
        if existing and inputs.canary:
            _refuse_raw_canary(kube, existing, inputs)
        wanted = manifest(inputs, existing)
        _check_knative(kube, wanted, pace)
        halted = stopped(wanted)
        if halted:
            raise DeployFailed(
                f"InferenceService {kube.namespace}/{inputs.name} would serve nothing: {halted}. "
                "It was left as it is."
            )
        if existing and _covers(existing, wanted) and _share(existing) == _share(wanted):
            log(f"InferenceService {kube.namespace}/{inputs.name} is already as wanted")
            return existing
        try:
            if existing:
                return kube.replace(INFERENCE_SERVICE, wanted)
            return kube.create(INFERENCE_SERVICE, wanted)
        except (AlreadyExists, Conflict, NotFound) as error:
            if isinstance(error, NotFound) and not existing:
                # What a create does not find is its namespace.
                raise
            if time.monotonic() > deadline:
                raise _contended(kube, inputs, error) from error
            # KServe's controller writes too: read, change and write again.
            time.sleep(pace.settle)


def _check_knative(kube: Kube, wanted: Object, pace: Pace) -> None:
    """Refuse Knative mode where there is no Knative: KServe's status would stay empty."""
    mode = str(dig(wanted, "metadata", "annotations", MODE_ANNOTATION) or "")
    deadline = time.monotonic() + pace.refusal_grace
    while MODES.get(mode) == "Knative" and not kube.serves(KNATIVE_REVISION):
        # A server that has only just started does not list every kind yet.
        if time.monotonic() > deadline:
            name = dig(wanted, "metadata", "name")
            raise InputError(
                f"InferenceService {kube.namespace}/{name} is to run in mode {mode!r}, but the "
                f"cluster has no Knative Serving (no {KNATIVE_REVISION.plural}."
                f"{KNATIVE_REVISION.group}), so KServe could make nothing of it. Set "
                "deployment_mode to 'Standard', or ask an administrator to install Knative Serving."
            )
        time.sleep(pace.poll)


def _contended(kube: Kube, inputs: ServiceInputs, error: ApiError) -> DeployFailed:
    return DeployFailed(
        f"InferenceService {kube.namespace}/{inputs.name} could not be written, for somebody else "
        f"writes to it all the time: {error.server_message}.\nFind out who (kubectl get "
        f"inferenceservice {inputs.name} -o yaml --show-managed-fields), stop that and start "
        "the step again."
    )


def find(kube: Kube, kind: Kind, name: str) -> Object | None:
    """Read an object; None where there is none of that name."""
    try:
        return kube.get(kind, name)
    except NotFound:
        return None


def find_deployment(kube: Kube, service: str) -> Object | None:
    """Read what runs a service in Standard mode; None where there is none yet.

    KServe goes on with the name that an older KServe gave it (v0.20, predictor.go).
    """
    names = (f"{service}-predictor", f"{service}-predictor-default")
    return next(filter(None, (find(kube, DEPLOYMENT, name) for name in names)), None)


def _covers(existing: object, wanted: object) -> bool:
    """Whether a write would change nothing; KServe fills in fields that we leave out."""
    if isinstance(wanted, dict) and isinstance(existing, dict):
        return all(_covers(existing.get(key), value) for key, value in wanted.items())
    return existing == wanted


def _share(service: Object) -> object:
    """The canary's share, which is told by being left out, too: then it is all."""
    return dig(service, "spec", "predictor", "canaryTrafficPercent")


def _refuse_raw_canary(kube: Kube, existing: Object, inputs: ServiceInputs) -> None:
    raw = mode_of(existing) == "Standard" or (
        not mode_of(existing) and find_deployment(kube, inputs.name)
    )
    if raw:
        percent = int(inputs.predictor["canaryTrafficPercent"])
        raise InputError(no_raw_canary(percent, f"service {inputs.name!r} is in Standard mode"))
