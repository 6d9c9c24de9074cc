"""Makes sure that there is exactly one live job of this step, whatever was there before."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from kfp_pytorch.launcher.constants import (
    ATTEMPT_ANNOTATION,
    MANAGED_BY_LABEL,
    RUN_ID_LABEL,
)
from kfp_pytorch.launcher.errors import InputError, JobFailed, NotOurs, StepError
from kfp_pytorch.launcher.jobs.kind import JobKind
from kfp_pytorch.launcher.jobs.state import Phase
from kfp_pytorch.launcher.kubernetes.api_errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    KindAbsent,
    NotFound,
    Refused,
)
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.runtime.printing import log
from kfp_pytorch.launcher.runtime.stopping import Stopper, Target, delete_by_uid
from kfp_pytorch.launcher.text import some
from kfp_pytorch.launcher.waiting.limits import Limits

_OVER_QUOTA = "exceeded quota"
_UNKNOWN = re.compile(r'unknown field "([^"]+)"')
_IN_TEMPLATE = re.compile(r"^spec\.(?:\w+\.)*?template\.")


@dataclass(frozen=True)
class Ensured:
    """The job that this step waits for.

    Attributes:
        job: The object.
        how: `created`, `adopted` (it was there, alive), or `finished` (it was there and had
            succeeded).
        attempt: Which job of this step it is, from 1.
    """

    job: Object
    how: str
    attempt: int


def ensure(
    kube: Kube,
    kind: JobKind,
    build: Callable[[int], Object],
    target: Target,
    stopper: Stopper,
    limits: Limits,
) -> Ensured:
    """Creates the job, or adopts, replaces or refuses the one that is there.

    Args:
        kube: The cluster.
        kind: The job's kind.
        build: Makes the job's object for an attempt, from 1.
        target: The job, as a signal would delete it; is told what becomes known of it.
        stopper: Lets nothing be created once a signal came.
        limits: How long a deletion may take, and the kind be unknown.

    Returns:
        The job.

    Raises:
        NotOurs: A job of that name belongs to somebody else.
        JobFailed: An old job's deletion does not come to an end.
        ApiError: The server refused the job.
        SystemExit: A signal came.
    """
    started, attempt, replaced = time.monotonic(), 1, -math.inf
    while True:
        made = _create(kube, kind, build(attempt), target, stopper, limits, replaced)
        if not isinstance(made, ApiError):
            return Ensured(made, "created", attempt)
        found = _find(kube, kind, target.name, limits)
        if found is None:
            words = f"can neither be made nor found, again and again ({made.server_message})"
            _bound(started, limits, kind, target.name, words)
            time.sleep(0.2)
            continue
        if not target.owns(found):
            stopper.clear_target()
            raise NotOurs(_not_ours(found, kind, kube))
        target.uid = found["metadata"]["uid"]
        phase = kind.read_state(found).phase
        deleting = bool(found["metadata"].get("deletionTimestamp"))
        if not deleting and phase is not Phase.FAILED:
            how = "finished" if phase is Phase.SUCCEEDED else "adopted"
            return Ensured(found, how, attempt_of(found))
        attempt = attempt_of(found) + 1
        _clear_away(kube, kind, found, deleting=deleting)
        _await_absence(kube, kind, found, limits)
        target.uid, replaced = "", time.monotonic()


def attempt_of(job: Object) -> int:
    """Which job of its step this is, from 1, by its annotation."""
    text = (job["metadata"].get("annotations") or {}).get(ATTEMPT_ANNOTATION, "")
    return int(text) if text.isdecimal() else 1


def _create(
    kube: Kube,
    kind: JobKind,
    job: Object,
    target: Target,
    stopper: Stopper,
    limits: Limits,
    replaced: float,
) -> Object | ApiError:
    """Creates the job; an error when there is, or may be, one of its name, perhaps of our own."""
    started = time.monotonic()
    # In this order: a signal either finds a create in flight, or is found here.
    target.creating = True
    try:
        while True:
            stopper.check()
            try:
                created = kube.create(kind.resource, job, unknown_fields="Strict")
                target.uid = created["metadata"]["uid"]
                return created
            except (AlreadyExists, Conflict) as error:
                # A conflict is of a quota that counts jobs and was written at the same moment.
                return error
            except (Refused, Forbidden) as error:
                # Admission comes before the name is looked at: our own job may be what is over the
                # quota, made by an earlier try or by a create whose answer was lost.
                if _is_made(kube, target):
                    return error
                if (
                    _OVER_QUOTA not in error.server_message
                    or time.monotonic() > replaced + limits.quota
                ):
                    raise _unknown_fields(error, kind) from error
                # The one that was replaced may still be counted.
                time.sleep(0.5)
            except KindAbsent as error:
                _bear_absence(error, kind, started, limits)
    finally:
        target.creating = False
        stopper.check()


def _is_made(kube: Kube, target: Target) -> bool:
    try:
        return target.owns(kube.get(target.kind, target.name))
    except StepError:
        return False


def _unknown_fields(error: ApiError, kind: JobKind) -> StepError:
    """A refusal for fields that the cluster does not know, as what it is: mostly a typing error."""
    found = dict.fromkeys(
        _IN_TEMPLATE.sub("", path) for path in _UNKNOWN.findall(error.server_message)
    )
    if not found:
        return error
    fields = some(map(repr, found), 6)
    return InputError(
        f"The cluster's {kind.resource.kind} has no field {fields}. Look for a typing error in "
        "pod_template_patch, affinity, tolerations, env or the task's volumes; a field that is "
        f"newer than the cluster must be left out.\nThe server said: {error.server_message}",
        f"The cluster's {kind.resource.kind} has no field {fields}",
    )


def _bear_absence(error: KindAbsent, kind: JobKind, started: float, limits: Limits) -> None:
    """Waits a little: just after an installation the server may not know the kind yet."""
    if time.monotonic() - started > limits.kind_absent:
        raise JobFailed(
            f"{error.message}\n{kind.install_advice}",
            f"The cluster does not know {kind.resource.kind}s: is the {kind.operator} installed?",
        ) from error
    time.sleep(min(1.0, limits.kind_absent / 4))


def _find(kube: Kube, kind: JobKind, name: str, limits: Limits) -> Object | None:
    started = time.monotonic()
    while True:
        try:
            return kube.get(kind.resource, name)
        except NotFound:
            return None
        except KindAbsent as error:
            _bear_absence(error, kind, started, limits)


def _clear_away(kube: Kube, kind: JobKind, job: Object, *, deleting: bool) -> None:
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    if deleting:
        log(f"an old job {name} is being deleted; waiting for its end")
        return
    state = kind.read_state(job)
    words = state.message or state.reason or "the operator gave no reason"
    log(f"replacing job {name}, which failed in attempt {attempt_of(job)}: {words}")
    delete_by_uid(kube, kind.resource, name, uid)


def _await_absence(kube: Kube, kind: JobKind, job: Object, limits: Limits) -> None:
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    started, pause = time.monotonic(), 0.1
    while True:
        found = _find(kube, kind, name, limits)
        if found is None or found["metadata"]["uid"] != uid:
            return
        held = ", ".join(found["metadata"].get("finalizers") or []) or "none"
        _bound(started, limits, kind, name, f"is still being deleted (finalizers: {held})")
        time.sleep(pause)
        pause = min(2 * pause, 2.0)


def _bound(started: float, limits: Limits, kind: JobKind, name: str, words: str) -> None:
    if time.monotonic() - started > limits.deletion:
        raise JobFailed(
            f"Job {name} {words} after {limits.deletion:.0f} s, so no new one can be made. "
            f"Look at it with `kubectl get {kind.word} {name} -o yaml`."
        )


def _not_ours(found: Object, kind: JobKind, kube: Kube) -> str:
    metadata = found["metadata"]
    labels = metadata.get("labels") or {}
    since = metadata.get("creationTimestamp", "at an unknown time")
    whose = ", ".join(
        f"{key}={labels[key]}" for key in (MANAGED_BY_LABEL, RUN_ID_LABEL) if key in labels
    )
    return (
        f"There is a {kind.resource.kind} {metadata['name']!r} in namespace {kube.namespace!r} "
        f"that is not this step's (labels: {whose or 'none of ours'}; created {since}). "
        "It was not touched. Delete it if nobody needs it, or give this step another `name`."
    )
