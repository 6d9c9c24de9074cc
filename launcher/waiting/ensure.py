"""Makes sure that there is exactly one live job of this step, whatever was there before."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from kfp_pytorch.launcher.constants import ATTEMPT_ANNOTATION, MANAGED_BY_LABEL, POD, RUN_ID_LABEL
from kfp_pytorch.launcher.errors import CannotObserve, InputError, JobFailed, NotOurs, StepError
from kfp_pytorch.launcher.jobs.adoption import other_inputs
from kfp_pytorch.launcher.jobs.kind import JobKind
from kfp_pytorch.launcher.jobs.state import JobState, Phase
from kfp_pytorch.launcher.kubernetes import admission, api_errors
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.objects import Object, name
from kfp_pytorch.launcher.kubernetes.schemas import other_versions
from kfp_pytorch.launcher.runtime.printing import log
from kfp_pytorch.launcher.runtime.stopping import Stopper, Target, delete_by_uid
from kfp_pytorch.launcher.text import some
from kfp_pytorch.launcher.waiting.limits import Limits

_OVER_QUOTA = "exceeded quota"
_UNKNOWN_FIELD = re.compile(r'unknown field "([^"]+)"')
_IN_TEMPLATE = re.compile(r"^spec\.(?:\w+\.)*?template\.")


@dataclass(frozen=True)
class Ensured:
    """The job that this step waits for.

    Attributes:
        how: `created`, `adopted` (it was there, alive), or `finished` (it was there and had
            succeeded).
    """

    job: Object  # the object
    how: str
    attempt: int  # which job of this step it is, from 1


def ensure(
    kube: Kube,
    kind: JobKind,
    build: Callable[[int], Object],
    target: Target,
    stopper: Stopper,
    limits: Limits,
    *,
    before: Callable[[Object], None] = lambda _job: None,
    replace_other: bool = False,
) -> Ensured:
    """Creates the job, or adopts, replaces or refuses the one that is there.

    `build`: makes the job's object for an attempt, from 1. `target`: the job, as a signal would
    delete it; gets the uid as soon as it is known. `limits`: how long a deletion may take, and the
    kind be unknown. `before`: makes what the job needs, before it is created. `replace_other`:
    whether a job that was made from other inputs is replaced, even one that runs or has succeeded;
    else it is adopted. Raises NotOurs: a job of that name has
    another owner. Raises JobFailed: an old job is not deleted in time. Raises ApiError: the server
    refused the job. Raises SystemExit: a signal came.
    """
    return _Ensurer(kube, kind, target, stopper, limits, before, replace_other).run(build)


def attempt_of(job: Object) -> int:
    """Which job of its step this is, from 1, by its annotation."""
    text = (job["metadata"].get("annotations") or {}).get(ATTEMPT_ANNOTATION, "")
    return int(text) if text.isdecimal() else 1


@dataclass
class _Ensurer:
    """Works on one job; `replaced` is when an old one was last found to be gone."""

    kube: Kube
    kind: JobKind
    target: Target
    stopper: Stopper
    limits: Limits
    before: Callable[[Object], None]
    replace_other: bool
    replaced: float = -math.inf

    def run(self, build: Callable[[int], Object]) -> Ensured:
        started, attempt, target = time.monotonic(), 1, self.target
        while True:
            self._await_pods()
            job = build(attempt)
            self.before(job)
            made = self._create(job)
            if not isinstance(made, api_errors.ApiError):
                return Ensured(made, "created", attempt)
            found = self._find()
            if found is None:
                message = f"can neither be created nor found ({made.server_message})"
                self._check_time(started, message)
                time.sleep(0.2)
                continue
            if not target.owns(found):
                self.stopper.clear_target()
                raise NotOurs(self._not_ours(found))
            target.uid = found["metadata"]["uid"]
            state = self.kind.read_state(found)
            phase, deleting = state.phase, bool(found["metadata"].get("deletionTimestamp"))
            failed = phase is Phase.FAILED and not self._trained_before_deadline(found, state)
            attempt = attempt_of(found)
            if deleting:
                log(f"an old job {name(found)} is being deleted; waiting for its end")
            elif failed:
                words = state.message or state.reason or "the operator gave no reason"
                self._delete(found, f"which failed in attempt {attempt}: {words}")
            elif self.replace_other and other_inputs(self.kind, found, build(attempt)):
                self._delete(found, f"which was made from other inputs, in attempt {attempt}")
            else:
                how = "finished" if phase is Phase.SUCCEEDED else "adopted"
                return Ensured(found, how, attempt)
            attempt += 1
            self._await_absence(found)
            target.uid, self.replaced = "", time.monotonic()

    def _create(self, job: Object) -> Object | api_errors.ApiError:
        """Creates the job; an error when one of its name exists or may exist, perhaps our own."""
        started = time.monotonic()
        # In this order: a signal either finds a create in flight, or is found here.
        self.target.creating = True
        try:
            while True:
                self.stopper.check()
                try:
                    created = self.kube.create(self.kind.resource, job, unknown_fields="Strict")
                    self.target.uid = created["metadata"]["uid"]
                    return created
                except (api_errors.AlreadyExists, api_errors.Conflict) as error:
                    # A conflict is of a quota that counts jobs and was written at the same moment.
                    return error
                except (api_errors.Refused, api_errors.Forbidden) as error:
                    # Admission comes before the name is looked at: our own job may be what is over
                    # the quota, created by an earlier attempt or by a create whose answer was lost.
                    if self._is_created():
                        return error
                    over_quota = _OVER_QUOTA in error.server_message
                    if not over_quota or time.monotonic() > self.replaced + self.limits.quota:
                        raise self._with_unknown_fields(error) from error
                    # The job that was replaced may still be counted.
                    time.sleep(0.5)
                except api_errors.KindAbsent as error:
                    self._wait_for_kind(error, started)
        finally:
            self.target.creating = False
            self.stopper.check()

    def _trained_before_deadline(self, job: Object, state: JobState) -> bool:
        """Whether a job that the operator's deadline ended counts as succeeded."""
        if not state.past_deadline:
            return False
        pods = [pod for pod in self._pods() if self.kind.owns_pod(pod, job)]
        first = self.kind.first_pod(job, pods)
        return any(name(pod) == first and self.kind.has_trained(pod) for pod in pods)

    def _is_created(self) -> bool:
        try:
            return self.target.owns(self.kube.get(self.kind.resource, self.target.name))
        except StepError:
            return False

    def _find(self) -> Object | None:
        started = time.monotonic()
        while True:
            try:
                return self.kube.get(self.kind.resource, self.target.name)
            except api_errors.NotFound:
                return None
            except api_errors.Unauthorized as error:
                raise CannotObserve(f"Could not observe the job: {error.message}") from error
            except api_errors.KindAbsent as error:
                self._wait_for_kind(error, started)

    def _wait_for_kind(self, error: api_errors.KindAbsent, started: float) -> None:
        """Waits a little: just after an installation the server may not know the kind yet."""
        if time.monotonic() - started > self.limits.kind_absent:
            resource, operator = self.kind.resource, self.kind.operator
            if others := other_versions(self.kube, resource):
                raise JobFailed(
                    f"The cluster has no {resource.kind} of {resource.api_version}: its "
                    f"CustomResourceDefinition is of {some(others)}, of another version of the "
                    f"{operator} or of another operator.\n{self.kind.install_advice}"
                ) from error
            raise JobFailed(
                f"{error.message}\n{self.kind.install_advice}",
                f"The cluster does not know {resource.kind}s: is the {operator} installed?",
            ) from error
        time.sleep(min(1.0, self.limits.kind_absent / 4))

    def _delete(self, job: Object, why: str) -> None:
        log(f"replacing job {name(job)}, {why}")
        uid = job["metadata"]["uid"]
        delete_by_uid(self.kube, self.kind.resource, name(job), uid, self.kind.propagation)

    def _await_absence(self, job: Object) -> None:
        started, pause = time.monotonic(), 0.1
        while True:
            found = self._find()
            if found is None or found["metadata"]["uid"] != job["metadata"]["uid"]:
                return
            held = ", ".join(found["metadata"].get("finalizers") or []) or "none"
            self._check_time(started, f"is still being deleted (finalizers: {held})")
            time.sleep(pause)
            pause = min(2 * pause, 2.0)

    def _await_pods(self) -> None:
        """Waits for the pods of a job that is gone: they still write into this job's folder."""
        started, pause = time.monotonic(), 0.1
        while self.kind.propagation != "Foreground" and (left := self._pods()):
            if self._find() is not None:
                return
            self._check_time(started, f"is gone, but its pods are not ({some(map(name, left))})")
            time.sleep(pause)
            pause = min(2 * pause, 2.0)

    def _pods(self) -> list[Object]:
        return self.kube.list(POD, labels=self.kind.pod_selector(self.target.name))

    def _check_time(self, started: float, words: str) -> None:
        if time.monotonic() - started > self.limits.deletion:
            job = self.target.name
            raise JobFailed(
                f"Job {job} {words} after {self.limits.deletion:.0f} s, so no new one can be "
                f"created. Look at it with `kubectl get {self.kind.kubectl_name} {job} -o yaml`."
            )

    def _with_unknown_fields(self, error: api_errors.ApiError) -> StepError:
        """A refusal for fields that the cluster does not know: mostly a typing error."""
        paths = _UNKNOWN_FIELD.findall(error.server_message)
        found = dict.fromkeys(_IN_TEMPLATE.sub("", path) for path in paths)
        if not found:
            return error
        first = f"The cluster's {self.kind.resource.kind} has no field {some(map(repr, found), 6)}"
        newer = [of for field, of in self.kind.newer_fields.items() if field in found]
        advice = newer[0] if newer else admission.advice(error.server_message)
        return InputError(f"{first}. {advice}\nThe server said: {error.server_message}", first)

    def _not_ours(self, found: Object) -> str:
        metadata, kind = found["metadata"], self.kind.resource.kind
        labels = metadata.get("labels") or {}
        since = metadata.get("creationTimestamp", "at an unknown time")
        whose = ", ".join(
            f"{key}={labels[key]}" for key in (MANAGED_BY_LABEL, RUN_ID_LABEL) if key in labels
        )
        return (
            f"There is a {kind} {metadata['name']!r} in namespace {self.kube.namespace!r} that is "
            f"not this step's (labels: {whose or 'none of ours'}; created {since}). It was not "
            "touched. Delete it if nobody needs it, or give this step another `name`."
        )
