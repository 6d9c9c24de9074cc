"""Waits until the new revision of an InferenceService serves, or explains why it does not."""

from __future__ import annotations

import time
from dataclasses import dataclass

from kfp_pytorch.launcher.constants import INFERENCE_SERVICE, KNATIVE_REVISION, POD
from kfp_pytorch.launcher.errors import StepError
from kfp_pytorch.launcher.kserve import evidence, phases
from kfp_pytorch.launcher.kserve.advice import what_to_do
from kfp_pytorch.launcher.kserve.awaited import Awaited, find
from kfp_pytorch.launcher.kserve.deploy import DeployFailed, Timing
from kfp_pytorch.launcher.kserve.manifest import HASH
from kfp_pytorch.launcher.kserve.names import POD_LABEL
from kfp_pytorch.launcher.kserve.rollout import Rollout, base_url, mode_of
from kfp_pytorch.launcher.kubernetes import pending, pod_status
from kfp_pytorch.launcher.kubernetes.api_errors import ApiError, Forbidden
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.objects import Object, dig
from kfp_pytorch.launcher.kubernetes.pod_failures import StartupFailures
from kfp_pytorch.launcher.kubernetes.transport import RetryPolicy
from kfp_pytorch.launcher.runtime.printing import Progress, log
from kfp_pytorch.launcher.text import cut

# What the reasons of KServe's events of a mode end with that the cluster lacks something for.
_REJECTED = "ModeRejected"


@dataclass
class Waiter:
    """Waits until the new revision of one service serves."""

    kube: Kube  # the cluster
    awaited: Awaited  # the revision
    timing: Timing  # how often and how long to poll

    def __post_init__(self) -> None:
        # Shorter than `Timing.unavailable_after`: what only explains is not waited for.
        self._evidence_kube = self.kube.with_policy(
            RetryPolicy(unavailability_budget=2.0, first_contact=2.0, connect=2, read=2)
        )
        self._unread = self._mode_refusal = ""
        self._next_events = self._next_pulled = 0.0
        self._pulled: list[str] = []
        self._startup_failures = StartupFailures()
        self._refused_since: float | None = None
        self._failed_since: float | None = None
        self._ready_since: float | None = None
        self._service: Object = {}
        self._workload: Object | None = None
        self._state = Rollout(False)

    def run(self) -> Object:
        """Waits.

        Returns the service, whose new revision serves and whose status has a URL. Raises
        DeployFailed: it does not; the message says why, with what serves now.
        """
        started, progress, confirmed = time.monotonic(), Progress(120.0), 0
        while True:
            asked = time.monotonic()
            state = self._state = self._read_rollout()
            confirmed = confirmed + 1 if state.done else 0
            self._ready_since = (self._ready_since or time.monotonic()) if state.done else None
            if confirmed >= self.timing.confirmations and self._has_url():
                return self._service
            pods = [] if state.done else self._new_pods()
            answered = time.monotonic() - asked
            if answered > self.timing.unavailable_after:
                # The server was unavailable, to KServe too perhaps: that time does not count.
                started += answered
                self._refused_since = self._failed_since = None
                self._startup_failures.reset()
            waited = time.monotonic() - started
            if not state.done:
                self._report_or_fail(progress, state, pods, waited)
            slow = self.timing.slow_poll_interval if waited > 60 else self.timing.poll_interval
            time.sleep(self.timing.confirm_interval if state.done else slow)

    def _report_or_fail(
        self, progress: Progress, state: Rollout, pods: list[Object], waited: float
    ) -> None:
        """Reports what is waited for, or fails where waiting longer cannot help."""
        # The message of the scheduler or the kubelet.
        why = pending.reason(pods, [])
        phase = self._phase(pods)
        waiting = f"waiting for {state.waits_for}"
        progress.report(phase or waiting, why or (waiting if phase else ""))
        reason = self._permanent_failure(state, pods)
        if not reason and waited > self.awaited.timeout:
            why = pending.reason(pods, self._events(pods)) or self._lacks_knative()
            limit = f"after {self.awaited.timeout} s (timeout)"
            reason = f"{limit} it still waits for {state.waits_for}" + (f"; {why}" if why else "")
        if reason:
            raise self._failure(reason)

    def _phase(self, pods: list[Object]) -> str:
        """How far the pods have come, with the image that is pulled; or an empty string."""
        phase, now = phases.phase(pods), time.monotonic()
        if phase != phases.STARTING:
            self._pulled = []
        elif now >= self._next_pulled:
            self._next_pulled = now + self.timing.pull_interval
            starting = next(pod for pod in pods if phases.phase([pod]) == phase)
            try:
                events = evidence.events_about(self._evidence_kube, starting)
                self._pulled = phases.images_being_pulled(events)
            except StepError:
                self._pulled = []
        return f"pulling the image {', '.join(self._pulled)}" if self._pulled else phase

    def _read_rollout(self) -> Rollout:
        """Reads the state; an answer that says nothing of the service is retried."""
        try:
            return self._read_objects()
        except Forbidden:
            raise
        except ApiError as error:
            return Rollout(False, f"an answer of the cluster that can be read ({error.short})")

    def _read_objects(self) -> Rollout:
        found = find(self.kube, INFERENCE_SERVICE, self.awaited.service_name)
        self._service = self._still_ours(found)
        self._workload, state = self.awaited.read(self.kube, self._service)
        return state

    def _still_ours(self, found: Object | None) -> Object:
        """Returns the service, if it still is what this step wrote."""
        service = self.awaited.title(self.kube.namespace)
        metadata = (found or {}).get("metadata") or {}
        if found is None or metadata.get("deletionTimestamp"):
            raise DeployFailed(
                f"{service} was deleted while it was waited for, by a person or another "
                "program. Find out which, then start the step again: it creates the service again."
            )
        carried = self.awaited.carried(found)
        if metadata.get("uid") != self.awaited.uid or carried != self.awaited.spec_hash:
            raise DeployFailed(
                f"{service} was changed by another client while it was waited for: it is to serve "
                f"revision {carried or 'without a name'} now, and this step's is "
                f"{self.awaited.spec_hash}. Two runs that deploy to one service_name undo each "
                "other: give each its own, or run one after the other. It was left as it is."
            )
        return found

    def _has_url(self) -> bool:
        if base_url(self._service, internal=False):
            return True
        if time.monotonic() - (self._ready_since or 0.0) < self.timing.url_grace:
            return False
        if base_url(self._service, internal=True):
            return True
        raise self._failure(
            f"it is Ready, but {self.timing.url_grace:.0f} s later its status has no URL"
        )

    def _permanent_failure(self, state: Rollout, pods: list[Object]) -> str:
        """Why waiting longer cannot help, or an empty string."""
        now = time.monotonic()
        refusal = state.refusal or self._refused_mode(now)
        self._refused_since = (self._refused_since or now) if refusal else None
        if self._refused_since and now - self._refused_since >= self.timing.refusal_grace:
            return f"the cluster cannot serve this spec: {refusal}"
        self._failed_since = (self._failed_since or now) if state.failed_load else None
        if self._failed_since and now - self._failed_since >= self.timing.load_grace:
            return f"its model did not load: {state.failed_load}"
        stay = [pod for pod in pods if not _is_replaced(pod)]
        failure = self._startup_failures.fatal(stay, now)
        if failure:
            return f"a container of the new revision does not start: {failure}"
        for pod in stay:
            for status in pod_status.container_statuses(pod):
                end = evidence.crash_loop(status)
                if end:
                    return f"container {status.get('name')!r} of the new revision {end}"
        return ""

    def _new_pods(self) -> list[Object]:
        """The new revision's pods; none where they cannot be read, for they only explain."""
        try:
            pods = self._evidence_kube.list(POD, labels=f"{POD_LABEL}={self.awaited.service_name}")
        except StepError as error:
            if not self._unread:
                self._unread = f"The predictor's pods could not be read: {error.short}"
                log(self._unread)
            return []
        ours = self.awaited.spec_hash
        return [pod for pod in pods if dig(pod, "metadata", "annotations", HASH) == ours]

    def _events(self, pods: list[Object]) -> list[Object]:
        """Reads the events of the first pod that does not start; none where that is forbidden.

        The containers of such a pod are only ContainerCreating, whatever they wait for. Of a
        service that KServe has made nothing of, its own events tell.
        """
        stuck = [pod for pod in pods if not pod_status.is_running_or_ended(pod)]
        stuck += [self._service] if self._is_untouched() else []
        try:
            return evidence.warnings(self._evidence_kube, stuck[0]) if stuck else []
        except StepError:
            return []

    def _is_untouched(self) -> bool:
        return self.awaited.is_untouched(self._service, self._workload)

    def _refused_mode(self, now: float) -> str:
        """Why KServe does not run the service in its mode, or an empty string.

        It leaves the status empty then.
        """
        if not self._is_untouched():
            self._mode_refusal = ""
        elif now >= self._next_events:
            self._next_events = now + self.timing.slow_poll_interval
            rejected = [e for e in self._events([]) if str(e.get("reason")).endswith(_REJECTED)]
            in_knative = mode_of(self._service) == "Knative"
            self._mode_refusal = pending.reason([], rejected) or (
                self._lacks_knative() if in_knative else ""
            )
        return self._mode_refusal

    def _lacks_knative(self) -> str:
        """That there is no Knative, which the service may need; or an empty string."""
        if not self._is_untouched() or mode_of(self._service) == "Standard":
            return ""
        try:
            served = self._evidence_kube.serves(KNATIVE_REVISION)
        except StepError:
            return ""
        words = "it may be to run in Knative mode, as is KServe's default, but the cluster has no"
        return "" if served else f"{words} Knative Serving"

    def _failure(self, reason: str) -> DeployFailed:
        headline = (
            f"{self.awaited.title(self.kube.namespace)} does not serve the new "
            f"revision: {cut(reason.rstrip('.'), evidence.LONGEST_LINE)}."
        )
        seen = evidence.Snapshot(self._service, self._workload, self._new_pods(), self._unread)
        advice = f"What to do: {what_to_do(self._state, seen, reason)}"
        explanation = evidence.explain(self._evidence_kube, self.awaited, seen)
        return DeployFailed("\n".join([headline, advice, *explanation]), headline)


def _is_replaced(pod: Object) -> bool:
    """Whether another pod replaces it, as one that was evicted or is deleted."""
    return pod_status.pod_phase(pod) == "Failed" or pod_status.is_terminating(pod)
