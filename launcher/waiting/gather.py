"""Gathers the evidence of a job while it is waited for, and once more at its end.

Whatever cannot be read is noted and never hides what ended the job.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from kfp_pytorch.launcher import text
from kfp_pytorch.launcher.constants import EVENT, EXIT_TERMINATED, POD
from kfp_pytorch.launcher.errors import CannotObserve, StepError
from kfp_pytorch.launcher.jobs.kind import JobKind
from kfp_pytorch.launcher.jobs.state import JobState, Phase
from kfp_pytorch.launcher.jobs.termination_messages import read_messages
from kfp_pytorch.launcher.kubernetes import objects, pending, pod_status
from kfp_pytorch.launcher.kubernetes.api_errors import Forbidden, NotFound
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.events import about, event_message
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.kubernetes.pod_failures import Crash, crashes
from kfp_pytorch.launcher.kubernetes.pod_status import (
    is_running_or_ended,
    is_terminating,
    pod_phase,
)
from kfp_pytorch.launcher.kubernetes.transport import RetryPolicy
from kfp_pytorch.launcher.waiting.evidence import Evidence
from kfp_pytorch.launcher.waiting.failed_runs import failed_runs
from kfp_pytorch.launcher.waiting.followers import history
from kfp_pytorch.launcher.waiting.limits import Limits
from kfp_pytorch.launcher.waiting.timeline import Timeline

# A traceback through a training framework has a hundred lines and more.
_TAIL_LINES = 500
_TAIL_BYTES = 64 * 1024
# The first ranks to fail say why; of a job with hundreds, the rest only report lost peers.
_PODS_WITH_LOGS = 8
_READS_A_POD = 5
_PODS_WITH_EVENTS = 5
_MOST_EVENTS = 200
_MOST_PAST_PODS = 50
_MOST_FAILED_RUNS = 500
_DELETED_LOG = "The log of {} can no longer be read here: the pod was deleted."


class Gatherer:
    """Fills an Evidence.

    Attributes:
        evidence: What was seen.
        timeline: Adds what happened to the evidence.
        unread_events: That events may not be read, as a clause; empty where they may.
    """

    def __init__(self, kube: Kube, kind: JobKind, job: Object, limits: Limits) -> None:
        # A few seconds a call: the end of the job must not wait for its evidence.
        brief = limits.gather / 5
        policy = RetryPolicy(brief, brief, pause=brief / 10, connect=brief, read=brief)
        self._kube = kube.with_policy(policy)
        self._kind = kind
        self._name = str(job["metadata"]["name"])
        self._limits = limits
        self._crashes: set[Crash] = set()
        self._reads: dict[str, int] = {}
        self._own_logs: set[tuple[str, str]] = set()
        self._deleted: set[str] = set()
        self.evidence = Evidence(kind, job)
        self.timeline = Timeline(self.evidence, self._kube.now)
        self.evidence.living = self._living = set[str]()
        self._streamed = ""  # the pod whose log the streamed lines stand for
        self.unread_events = ""

    @property
    def recreated(self) -> int:
        """How often the operator recreated a pod, except for pods that were being deleted."""
        own = [c for c in self._crashes if c.container == self._kind.container and not c.asked]
        codes = [crash.code for crash in own if crash.code != EXIT_TERMINATED]
        return sum(self._kind.recreates(self.evidence.job, code) for code in codes)

    @property
    def crashed(self) -> int:
        """How many containers ended without success."""
        return len(self._crashes)

    @property
    def first_pod(self) -> str:
        """The name of the job's first pod; empty while it is not known."""
        return self._kind.first_pod(self.evidence.job, list(self.evidence.pods.values()))

    @property
    def labels(self) -> str:
        """The label selector of the job's pods."""
        return self._kind.pod_selector(self._name)

    def record_job(self, job: Object, state: JobState, previous: JobState | None) -> None:
        """Records the job, and its change of state in the timeline."""
        self.evidence.job = _without_managed_fields(job)
        self.timeline.record_job(job, state, previous)
        if state.warning:
            self.note(state.warning)

    def record_pods(self, pods: Iterable[Object]) -> list[Crash]:
        """Records what a list returned; pods that it lacks are gone, and kept as last seen."""
        ours = [pod for pod in pods if self._kind.owns_pod(pod, self.evidence.job)]
        self._living.clear()
        self._living.update(objects.name(pod) for pod in ours)
        found = [crash for pod in ours for crash in self._record(pod)]
        self.timeline.record_pods(ours)
        return found

    def record_event(self, kind: str, pod: Object) -> list[Crash]:
        """Records one event of a watch."""
        if not self._kind.owns_pod(pod, self.evidence.job):
            return []
        name = str(pod["metadata"]["name"])
        known = self.evidence.pods.get(name)
        if kind == "DELETED":
            self._deleted.add(_uid(pod))
            # A newer pod of the same name may already have been seen.
            if known is None or known["metadata"].get("uid") == pod["metadata"].get("uid"):
                self._living.discard(name)
                return self._record(pod)
            return []
        self._living.add(name)
        found = self._record(pod)
        if objects.dig(pod, "spec", "nodeName"):
            self.timeline.record_pods(self.pods())
        return found

    def pods(self) -> list[Object]:
        """The pods that were there when last seen."""
        return [pod for name, pod in self.evidence.pods.items() if name in self._living]

    def pod(self, name: str) -> Object:
        """The pod of this name, if it was there when last seen; else an empty object."""
        return self.evidence.pods.get(name, {}) if name in self._living else {}

    def running(self) -> int:
        """How many pods run, or have succeeded."""
        return sum(is_running_or_ended(p) and pod_phase(p) != "Failed" for p in self.pods())

    def reason_not_running(self) -> str:
        """Why pods do not run yet, as the cluster reports it; or empty."""
        return pending.reason(self._kind.in_order(self.pods()), self.evidence.events)

    def lost(self) -> str:
        """Which pods' nodes are lost; or empty."""
        lost = [pod for pod in self._kind.in_order(self.pods()) if pod_status.node_lost(pod)]
        named = (f"{objects.name(pod)} on {objects.dig(pod, 'spec', 'nodeName')}" for pod in lost)
        return f"node lost ({text.some(named)})" if lost else ""

    def reason_still_running(self) -> str:
        """What keeps a pod alive whose training has ended; or empty."""
        pods, main = self._kind.in_order(self.pods()), self._kind.container
        return next((pod_status.reason_still_running(pod, main) for pod in pods), "")

    def read_logs(self, found: Iterable[Crash]) -> None:
        """Reads the ends of the logs of containers that crashed, while they are there."""
        deadline = time.monotonic() + self._limits.gather
        for crash in sorted(found, key=lambda c: c.container != self._kind.container):
            reads = self._reads.get(crash.pod, 0)
            full = not reads and len(self._reads) >= _PODS_WITH_LOGS
            if full or reads >= _READS_A_POD or time.monotonic() > deadline:
                continue
            self._reads[crash.pod] = reads + 1
            self._read_log(crash)

    def record_streamed(self, tail: str) -> None:
        """Records the lines of the first pod's log that were streamed, where it was not read."""
        if tail and self.evidence.logs.setdefault(self.first_pod, tail) == tail:
            self._streamed = self.first_pod
            lost = _DELETED_LOG.format(self._streamed)
            self.evidence.notes = [note for note in self.evidence.notes if note != lost]

    def read_events(self) -> None:
        """Reads the events about the job and about pods that do not run."""
        stuck = [p for p in self._kind.in_order(self.pods()) if not is_running_or_ended(p)]
        names = [
            *self._kind.makers(self._name),
            *(objects.name(p) for p in stuck[:_PODS_WITH_EVENTS]),
        ]
        for name in names:
            self._read_events(f"involvedObject.name={name}")
        if self._kind.read_state(self.evidence.job).phase is Phase.QUEUED:
            self._read_events(f"involvedObject.kind={pending.WORKLOAD}")

    def failed_pods(self) -> list[str]:
        """The names of the pods that failed and that nothing restarts."""
        failed = [p for p in self.pods() if pod_phase(p) == "Failed" and not is_terminating(p)]
        final = [pod for pod in failed if self._kind.is_final(self.evidence.job, pod)]
        return [objects.name(pod) for pod in self._kind.in_order(final)]

    def first_pod_succeeded(self) -> bool:
        """Whether training succeeded in the job's first pod."""
        return self._kind.has_trained(self.evidence.pods.get(self.first_pod, {}))

    def read_result(self, kube: Kube) -> None:
        """Reads the pods of a job that succeeded: their messages are the result.

        `kube`: retries for the unavailability budget, where no result was seen yet. Raises
        CannotObserve: as `read_pods` does.
        """
        seen = read_messages([*self.evidence.pods.values(), *self.evidence.past_pods]).success
        self.read_pods(None if seen else kube)

    def read_pods(self, needed: Kube | None = None) -> None:
        """Reads once more what the end of the job may have changed, where that is possible.

        `needed`: the cluster, where the result is not known without the pods. Raises CannotObserve:
        it was given, the first pod was not seen to succeed, and pods could not be read.
        """
        try:
            listed = (needed or self._kube).list(POD, labels=self.labels)
            crashes = self.record_pods(listed) + self._read_history()
        except StepError as error:
            if needed and not self.first_pod_succeeded():
                raise CannotObserve(f"Could not read the pods: {error.message}") from error
            self.note(f"The pods could not be read at the end: {error.short}")
        else:
            self.read_logs(crashes)

    def _read_history(self) -> list[Crash]:
        """Reads from the server's history how pods ended that went while no watch was open."""
        gone = [pod for name, pod in self.evidence.pods.items() if name not in self._living]
        left = {
            _uid(pod): pod for pod in self._kind.in_order(gone) if _uid(pod) not in self._deleted
        }
        if not left:
            return []
        found: list[Crash] = []
        seen = str(objects.dig(next(iter(left.values())), "metadata", "resourceVersion") or "")
        for kind, pod in history(self._kube, POD, labels=self.labels, version=seen):
            found += self.record_event(kind, pod)
            if not left.keys() - self._deleted:
                break
        return found

    def read_causes(self) -> None:
        """Reads what a failure may be explained by: pods, logs, events."""
        self.read_pods()
        missing = [crash for crash in sorted(self._crashes) if crash.pod not in self.evidence.logs]
        self.read_logs(missing)
        failed = [c.pod for c in sorted(self._crashes)][:_PODS_WITH_EVENTS]
        self.read_events()
        for name in dict.fromkeys(failed):
            self._read_events(f"involvedObject.name={name}")

    def note(self, words: str) -> None:
        """Notes a thing once."""
        if words and words not in self.evidence.notes:
            self.evidence.notes.append(words)

    def _record(self, pod: Object) -> list[Crash]:
        pods, name = self.evidence.pods, str(pod["metadata"]["name"])
        known = pods.get(name)
        if known is not None and known["metadata"].get("uid") != pod["metadata"].get("uid"):
            self.evidence.past_pods = [*self.evidence.past_pods, known][-_MOST_PAST_PODS:]
        pods[name] = _without_managed_fields(pod)
        if pod_status.node_lost(pod) and not pod_status.node_lost(known or {}):
            self.timeline.record_node_lost(pod)
        fresh = [crash for crash in crashes(pod) if crash not in self._crashes]
        self._crashes.update(fresh)
        self.timeline.record_crashes(pod, fresh)
        runs = self.evidence.failed_runs
        for run in failed_runs(self._kind, self.evidence.job, pod):
            runs.setdefault((run.uid, run.number), run)
        while len(runs) > _MOST_FAILED_RUNS:
            del runs[next(iter(runs))]
        return fresh

    def _read_log(self, crash: Crash) -> None:
        try:
            log = self._kube.read_log(
                crash.pod, crash.container, previous=crash.restarted, tail_lines=_TAIL_LINES
            )
        except Forbidden as error:
            self.note(f"Logs could not be read: {error.message}")
            return
        except NotFound:
            # Of a pod that was told to end, an earlier start's log says why.
            has_log = crash.asked and crash.pod in self.evidence.logs
            if crash.pod != self._streamed and not has_log:
                self.note(_DELETED_LOG.format(crash.pod))
            return
        except StepError as error:
            self.note(f"The log of {crash.pod} could not be read: {error.short}")
            return
        if not log.strip():
            return
        if crash.container == self._kind.container:
            self._own_logs.add((crash.pod, crash.uid))
            runs = self.evidence.failed_runs
            if run := runs.get((crash.uid, crash.number)):
                runs[crash.uid, crash.number] = replace(run, log=text.settled(log)[-_TAIL_BYTES:])
        elif (crash.pod, crash.uid) in self._own_logs:
            # The log of a sidecar does not replace the log of training.
            return
        self.evidence.logs[crash.pod] = text.settled(log)[-_TAIL_BYTES:]

    def _read_events(self, fields: str) -> None:
        if self.unread_events:
            return
        try:
            found = self._kube.list(EVENT, fields=fields)
        except Forbidden as error:
            self.unread_events = "events, which may say why, may not be read by this step"
            self.note(f"Events could not be read: {error.message}")
            return
        except StepError as error:
            self.note(f"The events with {fields} could not be read: {error.short}")
            return
        if pending.WORKLOAD in fields:
            # Those of other jobs in the namespace come with them.
            prefix = self._kind.workload_prefix(self._name)
            found = [event for event in found if pending.is_workload(event, prefix)]
        found = [event for event in found if not self._kind.is_harmless(event_message(event))]
        # Events remain when their object is deleted; an earlier job and its pods had these names.
        found = [event for event in found if self._is_about_this_job(event)]
        known = {objects.dig(e, "metadata", "uid"): e for e in self.evidence.events}
        known |= {objects.dig(e, "metadata", "uid"): _without_managed_fields(e) for e in found}
        self.evidence.events = sorted(known.values(), key=_event_time)[-_MOST_EVENTS:]

    def _is_about_this_job(self, event: Object) -> bool:
        """Whether an event is about this job or its pods, not about earlier ones of their names."""
        of, evidence = about(event), self.evidence
        uid = objects.dig(of, "uid")
        if not uid:
            return True
        if objects.dig(of, "kind") in (self._kind.resource.kind, POD.kind):
            ours = [evidence.job, *evidence.pods.values(), *evidence.past_pods]
            return any(objects.dig(obj, "metadata", "uid") == uid for obj in ours)
        made = objects.parse_time(objects.dig(evidence.job, "metadata", "creationTimestamp"))
        at = objects.parse_time(_event_time(event))
        return made is None or at is None or at >= made


def _uid(pod: Object) -> str:
    return str(objects.dig(pod, "metadata", "uid") or "")


def _event_time(event: Object) -> str:
    stamp = event.get("lastTimestamp") or event.get("eventTime")
    return str(stamp or objects.dig(event, "metadata", "creationTimestamp") or "")


def _without_managed_fields(obj: Object) -> Object:
    """An object without managedFields, which are half of it."""
    metadata = {k: v for k, v in (obj.get("metadata") or {}).items() if k != "managedFields"}
    return obj | {"metadata": metadata}
