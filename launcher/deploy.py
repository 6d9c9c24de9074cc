"""Creates or changes an InferenceService and waits until the new revision serves.

A live service is never deleted, whatever happens: not on failure, not on a signal.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from kfp_pytorch.launcher import podview, waiting
from kfp_pytorch.launcher.api_errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    KindAbsent,
    NotFound,
    Unauthorized,
)
from kfp_pytorch.launcher.constants import DEPLOYMENT, EVENT, INFERENCE_SERVICE, POD, Kind
from kfp_pytorch.launcher.errors import InputError, StepError
from kfp_pytorch.launcher.evidence import Object
from kfp_pytorch.launcher.inference_service import (
    HASH,
    POD_LABEL,
    Rollout,
    ServiceInputs,
    base_url,
    created_revision,
    manifest,
    mode_of,
    model_failure,
    no_raw_canary,
    rollout,
)
from kfp_pytorch.launcher.kube import Kube
from kfp_pytorch.launcher.limits import Limits
from kfp_pytorch.launcher.pods import TroubleWatch, container_status, container_statuses
from kfp_pytorch.launcher.podview import dig
from kfp_pytorch.launcher.progress import Progress, say

REVISION = Kind("serving.knative.dev", "v1", "Revision", "revisions")
INITIALIZER = "storage-initializer"
CRASHES = 2
TAIL_LINES = 20
MOST_EVENTS = 5
# Events that say again what the containers' states say.
NOISE = ("BackOff", "Unhealthy")


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
        url_grace: How long a service may be Ready without a URL.
        refusal_grace: How long KServe's refusal must last; it may be of the spec before.
        deletion: How long an old service's deletion may take.
        kind_absent: How long KServe's kind may be unknown to the server, which may have started
            just now.
    """

    poll: float = 0.5
    slow_poll: float = 3.0
    in_a_row: int = 3
    settle: float = 0.25
    url_grace: float = 15.0
    refusal_grace: float = 10.0
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
        existing = _find(kube, INFERENCE_SERVICE, inputs.name)
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
        if existing and _covers(existing, wanted):
            say(f"InferenceService {kube.namespace}/{inputs.name} is already as wanted")
            return existing
        try:
            if existing:
                return kube.replace(INFERENCE_SERVICE, wanted)
            return kube.create(INFERENCE_SERVICE, wanted)
        except (AlreadyExists, Conflict, NotFound):
            # KServe's controller writes too: read, change and write again.
            if time.monotonic() > deadline:
                raise
            time.sleep(pace.settle)


def _find(kube: Kube, kind: Kind, name: str) -> Object | None:
    try:
        return kube.get(kind, name)
    except NotFound:
        return None


def _covers(existing: object, wanted: object) -> bool:
    """Whether a write would change nothing; KServe fills in fields that we leave out."""
    if isinstance(wanted, dict) and isinstance(existing, dict):
        return all(_covers(existing.get(key), value) for key, value in wanted.items())
    return existing == wanted


def _refuse_raw_canary(kube: Kube, existing: Object, inputs: ServiceInputs) -> None:
    raw = mode_of(existing) == "Standard" or (
        not mode_of(existing) and _find(kube, DEPLOYMENT, f"{inputs.name}-predictor")
    )
    if raw:
        percent = int(inputs.predictor["canaryTrafficPercent"])
        raise InputError(no_raw_canary(percent, f"service {inputs.name!r} is in Standard mode"))


def doubtful_claim(inputs: ServiceInputs, namespace: str) -> str:
    """Say that a claim may be another than the one that was written to, or nothing."""
    uri = str(inputs.predictor["model"]["storageUri"])
    if not uri.startswith("pvc://") or inputs.made_in in ("", namespace):
        return ""
    return (
        f"The model was written to {uri!r} in namespace {inputs.made_in!r}, and is served from the "
        f"claim of that name in namespace {namespace!r}: they must be the same volume."
    )


@dataclass
class Waiter:
    """Waits until the new revision of one service serves.

    Attributes:
        kube: The cluster.
        inputs: What was asked for.
        pace: How often and how long to look.
        uid: The uid of the service that was written.
    """

    kube: Kube
    inputs: ServiceInputs
    pace: Pace
    uid: str

    def __post_init__(self) -> None:
        self._unread = ""
        self._troubles = TroubleWatch(Limits())
        self._refused_since: float | None = None
        self._ready_since: float | None = None
        self._service: Object = {}
        self._workload: Object | None = None

    def run(self) -> Object:
        """Waits.

        Returns:
            The service, whose new revision serves and whose status has a URL.

        Raises:
            DeployFailed: It does not come to that; the message says why, with what serves now.
        """
        started, progress, in_a_row = time.monotonic(), Progress(120.0), 0
        while True:
            state = self._look()
            in_a_row = in_a_row + 1 if state.done else 0
            self._ready_since = (self._ready_since or time.monotonic()) if state.done else None
            if in_a_row >= self.pace.in_a_row and self._has_url():
                return self._service
            waited = time.monotonic() - started
            if not state.done:
                pods = self._new_pods()
                # The scheduler's or the kubelet's own words.
                why = waiting.words(pods, [])
                progress.tell(f"waiting for {state.waits_for}", why)
                reason = self._hopeless(state, pods)
                if not reason and waited > self.inputs.timeout:
                    reason = "; ".join(filter(None, (self._too_late(state), why)))
                if reason:
                    raise self._failure(reason)
            slow = self.pace.slow_poll if waited > 60 else self.pace.poll
            time.sleep(self.pace.settle if state.done else slow)

    def _look(self) -> Rollout:
        """How far it is; an answer that tells nothing of the service is waited out."""
        try:
            return self._rollout()
        except (Forbidden, Unauthorized):
            raise
        except ApiError as error:
            return Rollout(False, f"an answer of the cluster that can be read ({error.short})")

    def _rollout(self) -> Rollout:
        name = self.inputs.name
        found = self._still_ours(_find(self.kube, INFERENCE_SERVICE, name))
        self._service = found
        if mode_of(found) == "Knative":
            created = created_revision(found)
            self._workload = _find(self.kube, REVISION, created) if created else None
        else:
            self._workload = _find(self.kube, DEPLOYMENT, f"{name}-predictor")
        return rollout(found, self._workload, self.inputs.spec_hash)

    def _still_ours(self, found: Object | None) -> Object:
        """The service, if it still is what this step wrote: waiting for another's is in vain."""
        service = f"InferenceService {self.kube.namespace}/{self.inputs.name}"
        metadata = (found or {}).get("metadata") or {}
        if found is None or metadata.get("deletionTimestamp"):
            raise DeployFailed(
                f"{service} was deleted meanwhile, by a person or another program. Find out by "
                "whom, then start the step again: it makes the service anew."
            )
        carried = dig(found, "spec", "predictor", "annotations", HASH)
        if metadata.get("uid") != self.uid or carried != self.inputs.spec_hash:
            raise DeployFailed(
                f"{service} was changed by somebody else while it was waited for: it is to serve "
                f"revision {carried or 'without a name'} now, and this step's is "
                f"{self.inputs.spec_hash}. Two runs that deploy to one service_name undo each "
                "other: give each its own, or run one after the other. It was left as it is."
            )
        return found

    def _has_url(self) -> bool:
        if base_url(self._service, internal=False):
            return True
        if time.monotonic() - (self._ready_since or 0.0) < self.pace.url_grace:
            return False
        if base_url(self._service, internal=True):
            return True
        raise self._failure(
            f"it is Ready, but {self.pace.url_grace:.0f} s later its status has no URL"
        )

    def _too_late(self, state: Rollout) -> str:
        return f"after {self.inputs.timeout} s (timeout) it still waits for {state.waits_for}"

    def _hopeless(self, state: Rollout, pods: list[Object]) -> str:
        """Why waiting longer cannot help, or an empty string."""
        now = time.monotonic()
        self._refused_since = (self._refused_since or now) if state.refusal else None
        if self._refused_since and now - self._refused_since >= self.pace.refusal_grace:
            return f"KServe cannot serve this spec: {state.refusal}"
        trouble = self._troubles.fatal(pods, now)
        if trouble:
            return f"a container of the new revision does not start: {trouble}"
        for pod in pods:
            for status in container_statuses(pod):
                end = _crash_loop(status)
                if end:
                    return f"container {status.get('name')!r} of the new revision {end}"
        return ""

    def _new_pods(self) -> list[Object]:
        """The new revision's pods; none where they cannot be read, for they only explain."""
        try:
            pods = self.kube.list(POD, labels=f"{POD_LABEL}={self.inputs.name}")
        except ApiError as error:
            if not self._unread:
                self._unread = f"The predictor's pods could not be read: {error.short}"
                say(self._unread)
            return []
        ours = self.inputs.spec_hash
        return [pod for pod in pods if dig(pod, "metadata", "annotations", HASH) == ours]

    def _failure(self, reason: str) -> DeployFailed:
        headline = (
            f"InferenceService {self.kube.namespace}/{self.inputs.name} does not serve the new "
            f"revision: {reason.rstrip('.')}."
        )
        return DeployFailed(
            "\n".join([headline, self._old_revision(), *self._evidence()]), headline
        )

    def _old_revision(self) -> str:
        """What serves now: a person must know whether users notice."""
        if mode_of(self._service) == "Knative":
            serves = bool(
                dig(self._service, "status", "components", "predictor", "latestReadyRevision")
            )
        else:
            status = dig(self._workload, "status") or {}
            fresh = dig(self._workload, "spec", "template", "metadata", "annotations", HASH)
            new = int(status.get("updatedReplicas") or 0) if fresh == self.inputs.spec_hash else 0
            serves = int(status.get("availableReplicas") or 0) > 0 and (
                int(status.get("replicas") or 0) > new
            )
        if serves:
            return "The previous revision still serves. The service was left as it is."
        return "Nothing serves. The service was left as it is."

    def _evidence(self) -> Iterator[str]:
        for condition in podview.each(self._service, "status", "conditions"):
            if condition.get("status") != "True" and condition.get("severity") != "Info":
                words = f"{condition.get('reason') or ''} {condition.get('message') or ''}".strip()
                yield f"Condition {condition.get('type')} is {condition.get('status')}: {words}"
        failure = model_failure(self._service)
        if failure:
            yield f"KServe says of the model: {failure}"
        try:
            for pod in self._new_pods():
                yield from self._pod_evidence(pod)
        except StepError as error:
            yield f"(More could not be read: {error.short})"
        if self._unread:
            yield f"({self._unread})"
        doubt = doubtful_claim(self.inputs, self.kube.namespace)
        if doubt:
            yield doubt

    def _pod_evidence(self, pod: Object) -> Iterator[str]:
        name = podview.name(pod)
        scheduled = podview.condition(pod, "PodScheduled")
        if scheduled.get("status") == "False":
            yield f"Pod {name} is not scheduled: {scheduled.get('message')}"
        for container, reason, words in podview.waiting(pod):
            yield f"Pod {name}: container {container} waits: {reason} {words}".rstrip()
        for container, end in {end.container: end for end in podview.failed_ends([pod])}.items():
            yield f"Container {container} of pod {name} ended with {self._log_tail(pod, end)}"
        for event in self._warnings(name):
            yield f"Event of pod {name}: {event.get('reason')}: {event.get('message')}"

    def _log_tail(self, pod: Object, end: podview.Ended) -> str:
        running = bool(dig(container_status(pod, end.container), "state", "running"))
        try:
            tail = self.kube.read_log(
                end.pod, end.container, previous=running, tail_lines=TAIL_LINES
            )
        except ApiError as error:
            tail = end.message or f"(it could not be read: {error.short})"
        return f"{podview.exit_words(end.exit_code)}. The end of its log:\n{tail.rstrip()}"

    def _warnings(self, pod: str) -> list[Object]:
        events = self.kube.list(EVENT, fields=f"involvedObject.name={pod}")
        return [e for e in events if e.get("type") == "Warning" and e.get("reason") not in NOISE][
            -MOST_EVENTS:
        ]


def _crash_loop(status: Object) -> str:
    """How a container ended that has crashed more than once, or an empty string."""
    now = dig(status, "state", "terminated") or {}
    end = now or dig(status, "lastState", "terminated") or {}
    crashes = int(status.get("restartCount") or 0) + bool(now.get("exitCode"))
    looping = dig(status, "state", "waiting", "reason") == "CrashLoopBackOff"
    if not end.get("exitCode") or (crashes < CRASHES and not looping):
        return ""
    words = [line for line in str(end.get("message") or "").splitlines() if line.strip()]
    tail = f": {words[-1]}" if words else ""
    return f"keeps crashing, {podview.exit_words(int(end['exitCode']))}{tail}"
