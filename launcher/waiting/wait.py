"""Waits for the end of a job: all that is observed of it comes together here.

Threads read (`watches`, `logs`) and put what they observe into a queue. The waiting thread takes it
out, keeps the evidence, counts the limits and judges; so nothing here needs a lock.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass

from kfp_pytorch.launcher.errors import CannotObserve, StepError
from kfp_pytorch.launcher.jobs.state import JobState, Phase
from kfp_pytorch.launcher.kubernetes.api_errors import Forbidden
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.objects import Object, dig, parse_time
from kfp_pytorch.launcher.kubernetes.pod_status import container_status
from kfp_pytorch.launcher.runtime.printing import Progress, log
from kfp_pytorch.launcher.waiting import refused_pods
from kfp_pytorch.launcher.waiting.clocks import RUNNING_PHASES
from kfp_pytorch.launcher.waiting.ensure import Ensured
from kfp_pytorch.launcher.waiting.evidence import Evidence
from kfp_pytorch.launcher.waiting.followers import JobFollower, PodsFollower
from kfp_pytorch.launcher.waiting.gather import Gatherer
from kfp_pytorch.launcher.waiting.judge import Judge
from kfp_pytorch.launcher.waiting.limits import Limits
from kfp_pytorch.launcher.waiting.logs import LogFollower
from kfp_pytorch.launcher.waiting.watch import Change, Observation, ObservationFailed, Snapshot

# How long the log of a job that has ended may take to be shown to its end, in seconds.
_LAST_LINES = 0.4
# How long the watch of the pods may be behind that of the job, in seconds.
_LAST_POD_EVENTS = 0.5
# How long the first line about an adopted job waits for its pods to be read, in seconds.
_FIRST_LINE = 5.0


@dataclass(frozen=True)
class End:
    """How a wait ended.

    Attributes:
        why: What that is, for a diagnosis: `failed`, `lost`, `trouble` or the limit's name.
    """

    state: JobState  # the job's last known state
    cause: str = ""  # why the step fails, in a sentence; empty when the job succeeded
    why: str = "failed"


class Wait:
    """Waits for one job; `failed_twice` is as in Judge."""

    def __init__(
        self,
        kube: Kube,
        ensured: Ensured,
        limits: Limits,
        gatherer: Gatherer,
        failed_twice: Callable[[Evidence], str],
    ) -> None:
        self._kube = kube
        self._limits = limits
        self._gatherer = gatherer
        self._kind = gatherer.evidence.kind
        self._name = str(ensured.job["metadata"]["name"])
        self._title = self._kind.title(self._name)
        self._uid = str(ensured.job["metadata"]["uid"])
        self._observations: queue.SimpleQueue[tuple[str, Observation | None]] = queue.SimpleQueue()
        put, resource = self._observations.put, self._kind.resource
        self._jobs = JobFollower(kube, lambda o: put(("job", o)), limits, resource, ensured.job)
        self._pods = PodsFollower(kube, lambda o: put(("pods", o)), limits, gatherer.labels)
        self._log = LogFollower(kube, self._kind, limits, lambda: put(("log", None)))
        self._expected = self._kind.expected_pods(ensured.job)
        self._judge = Judge(gatherer, ensured.job, limits, time.monotonic(), failed_twice)
        self._progress = Progress(limits.progress_interval)
        self._lost = ""
        self._error: StepError | None = None
        self._reported_crashes, self._crashes_due = 0, 0.0
        self._next_read = time.monotonic()
        self._interval = limits.quick_interval
        self._verdict_at: float | None = None
        self._read_since: set[str] = set()
        self._adopted = ensured.how == "adopted"
        self._pods_known_by = time.monotonic() + (_FIRST_LINE if self._adopted else 0.0)
        # A job that ran before this attempt is not given up for what this attempt may not do.
        self._jobs.allowed = self._pods.allowed = self._adopted
        self._state = self._kind.read_state(ensured.job)
        gatherer.record_job(ensured.job, self._state, None)
        self._update()
        if self._adopted:
            self._add_earlier_time(ensured.job)

    def run(self) -> End:
        """Waits.

        Returns how it ended. Raises CannotObserve: the API server was unavailable for too long.
        Raises PermissionMissing: the job or its pods may not be read.
        """
        self._jobs.start()
        self._pods.start()
        try:
            while True:
                end = self._end()
                if end is not None:
                    self._take_last_pod_events(end)
                    self._log.finish(_LAST_LINES)
                    return end
                self._report_progress()
                self._report_crashes()
                if not self._read_unwatched():
                    self._take(self._next_deadline())
        finally:
            for follower in (self._jobs, self._pods, self._log):
                follower.close()
            self._gatherer.note(self._log.note)
            self._gatherer.record_streamed(self._log.tail())

    def _take_last_pod_events(self, end: End) -> None:
        """The watch of a job may be ahead of that of its pods, whose messages are the result."""
        until = time.monotonic() + _LAST_POD_EVENTS
        while not (end.cause or self._judge.first_pod_ended() or time.monotonic() >= until):
            self._take(until)

    def _end(self) -> End | None:
        state, now = self._state, time.monotonic()
        if state.phase.ended:
            return End(state, self._cause_of_end(state))
        if self._lost:
            return End(state, self._lost, "lost")
        if self._error is not None:
            raise self._error
        verdict = self._judge.verdict(now)
        if verdict is None:
            self._verdict_at = None
            return None
        if not self._was_read_again(now):
            return None
        if verdict.why == "final_status":
            # Training may have succeeded: the launcher does not report a failure.
            raise CannotObserve(f"{verdict.cause}. Check that the operator runs.")
        return End(state, verdict.cause, verdict.why)

    def _was_read_again(self, now: float) -> bool:
        """Whether job and pods were read since the first verdict.

        A watch may be silent, or the server unavailable: a healthy job is not given up on an old
        view of it. The job's reader gives up by itself; pods that cannot be read are not waited
        for.
        """
        if self._verdict_at is None:
            self._verdict_at, self._read_since = now, set()
            self._jobs.read_now()
            self._pods.read_now()
        without_pods = now - self._verdict_at > self._limits.gather
        return "job" in self._read_since and ("pods" in self._read_since or without_pods)

    def _cause_of_end(self, state: JobState) -> str:
        warning = state.warning
        if state.phase is Phase.FAILED:
            words = ": ".join(filter(None, (state.reason, state.message)))
            if not self._succeeded_before_deadline(state):
                return f"{self._title} failed: {words or 'the operator gave no reason'}"
            warning = (
                f"the {self._kind.operator} says that the job failed ({words}), but its first pod "
                "had succeeded before: it counts as succeeded"
            )
            self._gatherer.note(warning)
        if warning:
            log(f"WARNING: {warning}")
        return ""

    def _succeeded_before_deadline(self, state: JobState) -> bool:
        """Whether the first pod had succeeded when the operator applied the deadline."""
        if not state.past_deadline:
            return False
        if not self._gatherer.first_pod_succeeded():
            # The operator deletes the pods: their last events may not have come yet.
            self._gatherer.read_pods()
        return self._gatherer.first_pod_succeeded()

    def _take(self, until: float) -> None:
        """Takes what was observed, waiting for it until then at the longest."""
        try:
            source, seen = self._observations.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return
        self._observe(source, seen)
        while not self._observations.empty():
            self._observe(*self._observations.get())

    def _observe(self, source: str, seen: Observation | None) -> None:
        if isinstance(seen, Snapshot):
            self._note_read(source, seen)
        if isinstance(seen, ObservationFailed):
            # Without the pods' states and messages there is no result: better to fail now.
            if source == "job" or isinstance(seen.error, Forbidden):
                self._error = seen.error
            self._gatherer.note(f"The {source} could not be watched: {seen.error.short}")
        elif source == "job":
            self._observe_job(seen)
        elif source == "pods":
            self._observe_pods(seen)
        elif not self._pods.streaming:
            # A log that ends is the first sign of a container's end.
            self._pods.read_now()

    def _note_read(self, source: str, snapshot: Snapshot) -> None:
        self._read_since.add(source)
        if source == "pods":
            self._pods_known_by = 0.0
        elif snapshot.took > self._limits.quick_interval:
            # The server was unavailable, perhaps for the operator and the kubelets too.
            self._judge.reset_after_outage(time.monotonic())

    def _observe_job(self, seen: Observation | None) -> None:
        deleted = f"{self._title} was deleted while it was waited for"
        if isinstance(seen, Snapshot):
            if not seen.items:
                self._lost = deleted
            for job in seen.items:
                self._saw_job(job)
        elif isinstance(seen, Change):
            metadata = seen.obj.get("metadata") or {}
            kind = seen.obj.get("kind")
            if kind != self._kind.resource.kind or metadata.get("name") != self._name:
                return
            if seen.kind == "DELETED" and metadata.get("uid") != self._uid:
                return
            self._saw_job(seen.obj)
            if seen.kind == "DELETED":
                self._lost = deleted

    def _saw_job(self, job: Object) -> None:
        if (job["metadata"].get("uid") or self._uid) != self._uid:
            self._lost = (
                f"{self._title} was deleted, and another of its name was made that is "
                "not this step's"
            )
            return
        if self._state.phase.ended:
            # The end is final, whatever a stale read says afterwards.
            return
        previous, self._state = self._state, self._kind.read_state(job)
        changed = _version(job) != _version(self._gatherer.evidence.job)
        self._gatherer.record_job(job, self._state, previous)
        if previous.phase is not self._state.phase:
            self._read_soon()
        if changed and not self._pods.streaming:
            self._pods.read_now()
        self._update()

    def _observe_pods(self, seen: Observation | None) -> None:
        if isinstance(seen, Snapshot):
            crashes = self._gatherer.record_pods(seen.items)
        elif isinstance(seen, Change) and seen.obj.get("kind", "Pod") == "Pod":
            crashes = self._gatherer.record_event(seen.kind, seen.obj)
        else:
            return
        self._gatherer.read_logs(crashes)
        self._update()
        pod = self._gatherer.evidence.pods.get(self._gatherer.first_pod, {})
        status = container_status(pod, self._kind.container)
        if any(dig(status, "state", state) is not None for state in ("running", "terminated")):
            self._log.container_started(pod, int(status.get("restartCount") or 0))
        if self._judge.first_pod_ended():
            # The job's own end should be near; an event of it may have been lost.
            self._next_read = min(self._next_read, time.monotonic() + 1.0)

    def _update(self) -> None:
        before = self._judge.clocks.all_running
        self._judge.update(self._state, time.monotonic())
        if before and not self._judge.clocks.all_running:
            self._read_soon()

    def _read_soon(self) -> None:
        """Reads at once, and at short intervals at first."""
        self._next_read = time.monotonic()
        self._interval = self._limits.quick_interval

    def _add_earlier_time(self, job: Object) -> None:
        """Counts what an adopted job has used of its limits, by the cluster's clock alone."""
        created = parse_time(dig(job, "metadata", "creationTimestamp"))
        if created is None:
            return
        started = parse_time(dig(job, "status", "startTime"))
        since = parse_time(self._state.since) or started or created
        now = self._kube.now()
        in_phase = (now - max(since, created)).total_seconds()
        active = (now - max(started or since, created)).total_seconds()
        self._judge.clocks.add_earlier(max(0.0, in_phase), max(0.0, active))

    def _report_progress(self) -> None:
        if time.monotonic() < self._pods_known_by:
            return
        clocks, running = self._judge.clocks, self._gatherer.running()
        phase = clocks.phase
        pods = f"{running} of {self._expected} pods run" if self._expected else ""
        all_running = running >= self._expected
        reason = ""
        if phase is Phase.QUEUED or not all_running:
            reason = self._gatherer.reason_not_running()
        about = "; ".join(filter(None, (pods, reason)))
        where = ", ".join(filter(None, (phase.value, self._gatherer.lost())))
        if self._state.deleting:
            self._progress.report("being deleted", pods)
        elif phase in RUNNING_PHASES:
            still = self._gatherer.reason_still_running()
            self._progress.report(where, still if all_running else about)
        elif phase is Phase.QUEUED:
            self._progress.report(where, reason or self._state.message)
        elif phase is not Phase.UNACKNOWLEDGED:
            self._progress.report(where, about)
        elif clocks.acknowledge > self._limits.quick_interval:
            # Before that it is no news.
            self._progress.report("created", "the operator has not acknowledged it yet")

    def _report_crashes(self) -> None:
        """Reports that containers crashed: a job that only restarts them stays Running.

        Those of many pods come together, and again and again: they are reported once in a while.
        """
        crashed, now = self._gatherer.crashed, time.monotonic()
        if crashed > self._reported_crashes and now >= self._crashes_due:
            self._reported_crashes = crashed
            self._crashes_due = now + self._limits.progress_interval / 5
            log(self._gatherer.timeline.last_crash())

    def _read_unwatched(self) -> bool:
        """Reads what no watch brings, at intervals that grow while nothing changes.

        Returns whether it read: then what was read is judged at once.
        """
        if time.monotonic() < self._next_read:
            return False
        ended = self._judge.first_pod_ended()
        if ended:
            self._jobs.read_now()
        if not self._judge.all_run:
            self._gatherer.read_events()
            self._update()
            if not self._pods.streaming:
                self._pods.read_now()
        elif not ended:
            self._next_read = float("inf")
            return False
        evidence, longest = self._gatherer.evidence, self._limits.progress_interval
        if refused_pods.missing_pods(evidence) and not refused_pods.is_queued(evidence):
            longest = min(self._limits.missing_pods_interval, longest)
        self._interval = min(2 * self._interval, longest)
        self._next_read = time.monotonic() + self._interval
        return True

    def _next_deadline(self) -> float:
        now, due = time.monotonic(), [self._next_read, self._progress.next_due()]
        if now < self._pods_known_by:
            due.append(self._pods_known_by)
        if self._verdict_at is not None:
            # What is due has been reached already.
            return min(*due, now + min(1.0, self._limits.gather))
        deadline = self._judge.next_deadline()
        return min(due if deadline is None else [*due, deadline])


def _version(job: Object) -> object:
    return dig(job, "metadata", "resourceVersion")


def announce(ensured: Ensured, title: str, folder: str) -> None:
    """Logs which job is waited for, and whether it was created or found."""
    words = {
        "created": f"created {title}",
        "adopted": f"adopted {title}, which an earlier attempt of this step had made",
        "finished": f"{title} of an earlier attempt of this step has succeeded; taking its result",
    }[ensured.how]
    attempt = "" if ensured.attempt == 1 else f" (attempt {ensured.attempt})"
    log(f"{words}{attempt}; folder {folder}")
