"""Waits for the end of a job: the one place where all that is seen of it comes together.

Threads read (`watching`, `logs`) and put what they see into a queue. The waiting thread takes it
out, keeps the evidence, counts the limits and judges; so nothing here needs a lock.
"""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass

from kfp_pytorch.launcher.errors import CannotObserve, StepError
from kfp_pytorch.launcher.jobs.kind import JobKind
from kfp_pytorch.launcher.jobs.state import JobState, Phase
from kfp_pytorch.launcher.kubernetes.api_errors import Forbidden
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.objects import Object, dig, parse_time
from kfp_pytorch.launcher.kubernetes.pod_failures import StartupFailures
from kfp_pytorch.launcher.kubernetes.pod_status import container_status, is_terminating, pod_phase
from kfp_pytorch.launcher.runtime.printing import Progress, duration, log
from kfp_pytorch.launcher.waiting import refusals
from kfp_pytorch.launcher.waiting.clocks import Clocks
from kfp_pytorch.launcher.waiting.ensure import Ensured
from kfp_pytorch.launcher.waiting.follower import (
    Change,
    Observation,
    ObservationFailed,
    Snapshot,
)
from kfp_pytorch.launcher.waiting.gather import Gatherer
from kfp_pytorch.launcher.waiting.limits import Limits
from kfp_pytorch.launcher.waiting.logs import LogFollower
from kfp_pytorch.launcher.waiting.watches import JobFollower, PodsFollower

# How long the log of a job that has ended may take to be shown to its end, in seconds.
_LAST_LINES = 0.4
# The phases of a pod that has ended.
_OVER = ("Succeeded", "Failed")


@dataclass(frozen=True)
class End:
    """How a wait ended.

    Attributes:
        state: The job's last known state.
        cause: Why the step fails, in a sentence; empty when the job succeeded.
        why: What that is, for a diagnosis: `failed`, `lost`, `trouble` or the limit's name.
    """

    state: JobState
    cause: str = ""
    why: str = "failed"


class Wait:
    """Waits for one job."""

    def __init__(self, kube: Kube, ensured: Ensured, limits: Limits, gatherer: Gatherer) -> None:
        self._kube = kube
        self._limits = limits
        self._gatherer = gatherer
        self._kind = gatherer.evidence.kind
        self._name = str(ensured.job["metadata"]["name"])
        self._title = self._kind.title(self._name)
        self._uid = str(ensured.job["metadata"]["uid"])
        self._observations: queue.SimpleQueue[tuple[str, Observation | None]] = queue.SimpleQueue()
        self._jobs = JobFollower(
            kube,
            lambda s: self._observations.put(("job", s)),
            limits,
            self._kind.resource,
            ensured.job,
        )
        self._pods = PodsFollower(
            kube, lambda s: self._observations.put(("pods", s)), limits, gatherer.labels
        )
        self._log = LogFollower(kube, self._kind.container, limits, self._log_ended)
        self._expected = self._kind.expected_pods(ensured.job)
        self._startup_failures = StartupFailures(limits.pull_grace, limits.config_grace)
        self._refusals = refusals.RefusalWatch(limits)
        self._clocks = Clocks(limits, time.monotonic())
        self._progress = Progress(limits.progress_interval)
        self._state: JobState | None = None
        self._lost = ""
        self._error: StepError | None = None
        self._told_crashes, self._crashes_due = 0, 0.0
        self._beat_at, self._beat = time.monotonic(), limits.quick_interval
        self._asked: float | None = None
        self._read_since: set[str] = set()
        self._adopted = ensured.how == "adopted"
        # A job that ran before this try is not given up for what this try may not do.
        self._jobs.allowed = self._pods.allowed = self._adopted
        self._saw_job(ensured.job)

    def run(self) -> End:
        """Waits.

        Returns:
            How it ended.

        Raises:
            CannotObserve: The API server was unavailable for too long.
            PermissionMissing: The job or its pods may not be read.
        """
        self._jobs.start()
        self._pods.start()
        try:
            while True:
                end = self._judge()
                if end is not None:
                    self._log.finish(_LAST_LINES)
                    return end
                self._tell()
                self._tell_crashes()
                self._look_around()
                self._take(self._next_deadline())
        finally:
            for follower in (self._jobs, self._pods, self._log):
                follower.close()
            self._gatherer.note(self._log.note)
            if self._log.tail():
                self._gatherer.evidence.logs.setdefault(self._first_pod, self._log.tail())

    def _judge(self) -> End | None:
        assert self._state is not None  # noqa: S101 - set by __init__
        state, now = self._state, time.monotonic()
        if state.phase.ended:
            return End(state, self._cause_of(state))
        if self._lost:
            return End(state, self._lost, "lost")
        if self._error is not None:
            raise self._error
        cause = self._verdict(now)
        if not cause:
            self._asked = None
            return None
        if not self._looked_twice(now):
            return None
        limit = self._clocks.exceeded() or "trouble"
        if limit == "settle":
            # What was trained may be whole: it is not for the launcher to call it a failure.
            raise CannotObserve(f"{cause}. Check that the operator runs.")
        return End(state, cause, limit)

    def _verdict(self, now: float) -> str:
        """Why the job is to be given up, by what was seen of it; or empty."""
        trouble = self._startup_failures.fatal(self._gatherer.pods(), now)
        if trouble is not None:
            return str(trouble)
        evidence, retried = self._gatherer.evidence, self._gatherer.retried
        most = self._kind.restart_limit(evidence.job)
        if 0 < most <= retried:
            return (
                f"the pods of {self._title} failed and were started again {retried} "
                f"times, which is {self._kind.restart_limit_input} ({most})"
            )
        self._clocks.count(now)
        refused = self._refusals.fatal(evidence, now)
        if refused:
            return f"{self._title} gets no pods: {refused}"
        limit = self._clocks.exceeded()
        return self._cause_of_limit(limit) if limit else ""

    def _looked_twice(self, now: float) -> bool:
        """Whether job and pods were read since it came to the verdict.

        A watch may be silent, or the server unavailable: a healthy job is not given up on an old
        view of it. The job's reader gives up by itself; pods that cannot be read are not waited
        for.
        """
        if self._asked is None:
            self._asked, self._read_since = now, set()
            self._jobs.read_now()
            self._pods.read_now()
        without_pods = now - self._asked > self._limits.gather
        return "job" in self._read_since and ("pods" in self._read_since or without_pods)

    def _cause_of(self, state: JobState) -> str:
        if state.phase is Phase.SUCCEEDED:
            if state.warning:
                log(f"WARNING: {state.warning}")
            return ""
        words = ": ".join(filter(None, (state.reason, state.message)))
        return f"{self._title} failed: {words or 'the operator gave no reason'}"

    def _cause_of_limit(self, limit: str) -> str:
        job, limits, words = self._title, self._limits, self._gatherer.words()
        operator = self._kind.operator
        unread = self._gatherer.unread_events
        ran = f"{self._gatherer.running()} of {self._expected} pods ran"
        if limit == "start" and self._expected and not self._gatherer.pods():
            ran = f"none of its {self._expected} pods was made"
            words = words or unread or f"nothing says why, so look at the {operator}'s log"
        tail = f": {words}" if words else ""
        return {
            "acknowledge": f"{job} was not acknowledged by the {operator} within "
            f"{duration(limits.acknowledge)}: it has neither a condition nor a pod"
            + (f"; {unread}" if unread else ""),
            "queue": f"{job} was still queued after {duration(limits.queue)} (queue_timeout){tail}",
            "start": f"{job} did not start within {duration(limits.start)} (start_timeout); "
            f"{ran}{tail}",
            "run": f"{job} still ran after {duration(limits.run)} (timeout){tail}",
            "deletion": f"{job} was deleted while it ran, and has not gone for "
            f"{duration(limits.deletion)}{tail}",
            "settle": f"{self._first_pod} ended {duration(limits.settle)} ago, but the {operator} "
            f"has not said how {job} ended",
        }[limit]

    def _take(self, until: float) -> None:
        """Takes what was seen, waiting for it until then at the longest."""
        try:
            source, observation = self._observations.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return
        self._see(source, observation)
        while not self._observations.empty():
            self._see(*self._observations.get())

    def _see(self, source: str, observation: Observation | None) -> None:
        if isinstance(observation, Snapshot):
            self._note_read(source, observation)
        if isinstance(observation, ObservationFailed):
            # Without the pods' states and messages there is no result: better to fail now.
            if source == "job" or isinstance(observation.error, Forbidden):
                self._error = observation.error
            self._gatherer.note(f"The {source} could not be watched: {observation.error.short}")
        elif source == "job":
            self._see_job(observation)
        elif source == "pods":
            self._see_pods(observation)
        elif not self._pods.streaming:
            # A log that ends is the first sign of a container's end.
            self._pods.read_now()

    def _note_read(self, source: str, snapshot: Snapshot) -> None:
        self._read_since.add(source)
        if source == "job" and snapshot.took > self._limits.quick_interval:
            # The server was unavailable, for the operator and the kubelets too perhaps.
            self._clocks.forgive(time.monotonic())
            self._startup_failures.reset()
            self._refusals.reset()

    def _see_job(self, observation: Observation | None) -> None:
        if isinstance(observation, Snapshot):
            if not observation.items:
                self._lost = f"{self._title} was deleted while it was waited for"
            for job in observation.items:
                self._saw_job(job)
        elif isinstance(observation, Change):
            metadata = observation.obj.get("metadata") or {}
            if (
                observation.obj.get("kind") != self._kind.resource.kind
                or metadata.get("name") != self._name
            ):
                return
            if observation.kind == "DELETED" and metadata.get("uid") != self._uid:
                return
            self._saw_job(observation.obj)
            if observation.kind == "DELETED":
                self._lost = f"{self._title} was deleted while it was waited for"

    def _saw_job(self, job: Object) -> None:
        if (job["metadata"].get("uid") or self._uid) != self._uid:
            self._lost = (
                f"{self._title} was deleted, and another of its name was made that is "
                "not this step's"
            )
            return
        previous, self._state = self._state, self._kind.read_state(job)
        if previous is not None and previous.phase.ended:
            # The end is final, whatever a stale read says afterwards.
            self._state = previous
            return
        self._gatherer.saw_job(job, self._state, previous)
        changed = previous is None or previous.phase is not self._state.phase
        if changed and previous is not None:
            self._quicken()
            if not self._pods.streaming:
                self._pods.read_now()
        self._count()
        if self._adopted and previous is None:
            self._credit(job)

    def _see_pods(self, observation: Observation | None) -> None:
        if isinstance(observation, Snapshot):
            fresh = self._gatherer.saw_pods(observation.items)
        elif isinstance(observation, Change) and observation.obj.get("kind", "Pod") == "Pod":
            fresh = self._gatherer.saw_pod(observation.kind, observation.obj)
        else:
            return
        self._gatherer.read_logs(fresh)
        self._count()
        pod = self._gatherer.evidence.pods.get(self._first_pod, {})
        status = container_status(pod, self._kind.container)
        if any(dig(status, "state", told) is not None for told in ("running", "terminated")):
            uid = str(dig(pod, "metadata", "uid"))
            self._log.container_started(self._first_pod, uid, int(status.get("restartCount") or 0))
        if self._first_pod_over():
            # The job's own last word should be near; an event of it may have been lost.
            self._beat_at = min(self._beat_at, time.monotonic() + 1.0)

    def _count(self) -> None:
        assert self._state is not None  # noqa: S101 - set by __init__
        whole = self._gatherer.running() >= self._expected
        if self._clocks.whole and not whole:
            self._quicken()
        phase = self._state.phase
        seen = self._gatherer.pods() or refusals.told(self._gatherer.evidence)
        if phase is Phase.UNACKNOWLEDGED and seen:
            # Whoever made the pods, or could not make them, has seen the job.
            phase = Phase.STARTING
        over = self._first_pod_over()
        self._clocks.set(time.monotonic(), phase, whole, self._state.deleting, over)

    def _first_pod_over(self) -> bool:
        """Whether the first pod has ended; one that a queue takes away ends, too, but for now."""
        pod = self._gatherer.pod(self._first_pod)
        return pod_phase(pod) in _OVER and not is_terminating(pod)

    def _quicken(self) -> None:
        """Looks around soon, and often at first."""
        self._beat_at, self._beat = time.monotonic(), self._limits.quick_interval

    def _credit(self, job: Object) -> None:
        """Counts what an adopted job has used of its limits, by the cluster's clock alone."""
        assert self._state is not None  # noqa: S101 - set by __init__
        created = parse_time(dig(job, "metadata", "creationTimestamp"))
        since = (
            parse_time(self._state.since) or parse_time(dig(job, "status", "startTime")) or created
        )
        if created is None or since is None:
            return
        passed = (self._kube.now() - max(since, created)).total_seconds()
        self._clocks.credit(max(0.0, passed))

    def _tell(self) -> None:
        assert self._state is not None  # noqa: S101 - set by __init__
        state, running = self._state, self._gatherer.running()
        phase, whole = self._clocks.phase, running >= self._expected
        pods = f"{running} of {self._expected} pods run"
        words = self._gatherer.words() if phase is Phase.QUEUED or not whole else ""
        where = ", ".join(filter(None, (phase.value, self._gatherer.lost())))
        if state.deleting:
            self._progress.report("being deleted", pods)
        elif phase in (Phase.RUNNING, Phase.RESTARTING):
            about = "" if whole else "; ".join(filter(None, (pods, words)))
            self._progress.report(where, about or self._gatherer.reason_still_running())
        elif phase is Phase.UNACKNOWLEDGED:
            # It takes a parse_time, which is no news.
            if self._clocks.acknowledge > self._limits.quick_interval:
                self._progress.report("created", "the operator has not acknowledged it yet")
        else:
            about = words if phase is Phase.QUEUED else "; ".join(filter(None, (pods, words)))
            self._progress.report(where, about or state.message)

    def _tell_crashes(self) -> None:
        """Says that containers crashed: a job that only starts them again says Running all along.

        Those of many pods come together, and again and again: they are told once in a while.
        """
        crashed, now = self._gatherer.crashed, time.monotonic()
        if crashed > self._told_crashes and now >= self._crashes_due:
            self._told_crashes, self._crashes_due = (
                crashed,
                now + self._limits.progress_interval / 5,
            )
            log(self._gatherer.timeline.last_crash())

    def _look_around(self) -> None:
        """Reads what no watch brings, often at first and ever more seldom while nothing moves."""
        if time.monotonic() < self._beat_at:
            return
        assert self._state is not None  # noqa: S101 - set by __init__
        if self._first_pod_over():
            self._jobs.read_now()
        elif self._runs_whole():
            self._beat_at = float("inf")
            return
        else:
            self._gatherer.read_events()
            self._count()
            if not self._pods.streaming:
                self._pods.read_now()
        self._beat = min(2 * self._beat, self._limits.progress_interval)
        self._beat_at = time.monotonic() + self._beat

    def _runs_whole(self) -> bool:
        running = self._clocks.phase in (Phase.RUNNING, Phase.RESTARTING)
        return running and self._clocks.whole

    def _next_deadline(self) -> float:
        due = [self._beat_at, self._progress.next_due()]
        if self._asked is not None:
            # What is due is over already.
            return min(*due, time.monotonic() + min(1.0, self._limits.gather))
        counts = (self._clocks, self._startup_failures, self._refusals)
        return min([*due, *(at for count in counts if (at := count.next_deadline()) is not None)])

    @property
    def _first_pod(self) -> str:
        evidence = self._gatherer.evidence
        return self._kind.first_pod(evidence.job, list(evidence.pods.values()))

    def _log_ended(self) -> None:
        self._observations.put(("log", None))


def announce(ensured: Ensured, kind: JobKind, namespace: str) -> None:
    """Says which job is waited for, and how it came about."""
    job = kind.title(f"{namespace}/{ensured.job['metadata']['name']}")
    words = {
        "created": f"created {job}",
        "adopted": f"adopted {job}, which an earlier try of this step had made",
        "finished": f"{job} of an earlier try of this step has succeeded; taking its result",
    }[ensured.how]
    log(words if ensured.attempt == 1 else f"{words} (attempt {ensured.attempt})")
