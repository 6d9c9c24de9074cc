"""The timeline of a job: each change of its state, once, for the report. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from kfp_pytorch.launcher import text
from kfp_pytorch.launcher.jobs.state import JobState, Phase
from kfp_pytorch.launcher.kubernetes import objects, pod_status
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.kubernetes.pod_failures import Crash
from kfp_pytorch.launcher.waiting.evidence import Evidence, TimelineEntry

# The first and the last entries matter most; a job may restart for days.
_MOST_ENTRIES = 400
# Restarts of many pods within so long are one entry: when a rank ends, all others fail.
_TOGETHER = timedelta(seconds=60)
# A container that failed is started again, or its pod ends with it.
_CRASHED = ("restarted", "ended")
_WORDS = {
    Phase.QUEUED: "queued",
    Phase.RUNNING: "running",
    Phase.RESTARTING: "restarted",
    Phase.SUCCEEDED: "succeeded",
    Phase.FAILED: "failed",
}


class Timeline:
    """Adds what happened to the evidence, each thing once.

    `now`: returns the cluster's time, for what has no time of its own.
    """

    def __init__(self, evidence: Evidence, now: Callable[[], datetime]) -> None:
        self._evidence = evidence
        self._now = now
        self._scheduled = False
        self._restarts = 0
        self._word = ""  # the last one about the job; empty where a pod has failed since

    def record_job(self, job: Object, state: JobState, previous: JobState | None) -> None:
        """Enters the job's creation, and each change of its state."""
        if previous is None:
            created = objects.dig(job, "metadata", "creationTimestamp")
            self.enter("created", "", objects.parse_time(created))
        elif previous.phase is state.phase:
            return
        word = _WORDS.get(state.phase, "")
        if state.phase is Phase.QUEUED:
            self._scheduled = False
        elif previous is not None and previous.phase is Phase.QUEUED:
            word = word or "admitted"
        if word == self._word == _WORDS[Phase.RUNNING]:
            # Of some kinds the status says so again whenever a pod has ended.
            return
        if word:
            self._word = word
            detail = ": ".join(filter(None, (state.reason, state.message)))
            self.enter(word, detail, objects.parse_time(state.since))

    def record_pods(self, pods: Iterable[Object]) -> None:
        """Enters when the last of the job's pods got its node."""
        expected = self._evidence.kind.expected_pods(self._evidence.job)
        if self._scheduled or not expected:
            return
        placed = [pod for pod in pods if objects.dig(pod, "spec", "nodeName")]
        if len(placed) < expected:
            return
        self._scheduled = True
        nodes = dict.fromkeys(str(objects.dig(pod, "spec", "nodeName")) for pod in placed)
        conditions = (objects.condition(pod, "PodScheduled") for pod in placed)
        times = [objects.parse_time(c.get("lastTransitionTime")) for c in conditions]
        known = [time for time in times if time is not None]
        words = f"{text.counted(len(placed), 'pod')} on {text.some(nodes)}"
        self.enter("scheduled", words, max(known, default=None))

    def record_crashes(self, pod: Object, crashes: Iterable[Crash]) -> None:
        """Enters the ends of containers that were no success; those of many at once together."""
        ended = {end.container: end for end in reversed(list(pod_status.container_ends(pod)))}
        for crash in crashes:
            end = ended.get(crash.container)
            if end is None:
                continue
            words = f"{crash.pod}: {end.reason} {pod_status.describe_exit_code(end.exit_code)}"
            what = "restarted" if _is_restarted(pod, end) else "ended"
            self._ended(what, words, objects.parse_time(end.finished_at) or self._now())

    def record_node_lost(self, pod: Object) -> None:
        """Enters that a pod's node is lost; of many pods at once together."""
        at = objects.parse_time(objects.condition(pod, "Ready").get("lastTransitionTime"))
        words = f"{objects.dig(pod, 'spec', 'nodeName')}, of {objects.name(pod)}"
        self._ended("node lost", words, at or self._now())

    def last_crash(self) -> str:
        """Says what the last entry of crashes does; or an empty string."""
        crashes = (e for e in reversed(self._evidence.timeline) if e.what in _CRASHED)
        return next((f"{e.what}: {e.detail}" for e in crashes), "")

    def _ended(self, what: str, words: str, when: datetime) -> None:
        self._word = ""
        entries = self._evidence.timeline
        last = entries[-1] if entries else None
        if last and last.what == what and abs(when - last.time) < _TOGETHER:
            first = last.detail.partition(" (and ")[0]
            self._restarts += 1
            entries[-1] = replace(last, detail=f"{first} (and {self._restarts} more)")
            return
        self._restarts = 0
        self.enter(what, words, when)

    def enter(self, what: str, detail: str = "", when: datetime | None = None) -> None:
        """Enters one thing. `when`: its time; None for now."""
        entry = TimelineEntry(when or self._now(), what, detail)
        entries = [*self._evidence.timeline, entry]
        if len(entries) > _MOST_ENTRIES:
            half = _MOST_ENTRIES // 2
            entries = [*entries[:half], *entries[-half:]]
        self._evidence.timeline = entries


def _is_restarted(pod: Object, end: pod_status.ContainerEnd) -> bool:
    """Whether the kubelet starts a container again, or has done so.

    The pod's phase does not say: it becomes Failed about a second after its last container's end.
    """
    if pod_status.pod_phase(pod) in ("Failed", "Succeeded"):
        return False
    if not end.current:
        return True
    if pod_status.is_terminating(pod):
        return False
    never = objects.dig(pod, "spec", "restartPolicy") == "Never"
    return not never or pod_status.is_sidecar(pod, end.container)
