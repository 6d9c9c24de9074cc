"""What events say of pods that the cluster does not let the operator create."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kfp_pytorch.launcher import admission, podview
from kfp_pytorch.launcher.evidence import Evidence
from kfp_pytorch.launcher.findings import NO_PODS, Finding, event_object, event_words
from kfp_pytorch.launcher.limits import Limits
from kfp_pytorch.launcher.scheduling import GANG, GANG_ADVICE
from kfp_pytorch.launcher.state import Phase, job_state


def told(evidence: Evidence) -> str:
    """Return what the operator last said of pods that it could not create; or an empty string."""
    job = podview.name(evidence.job)
    return next(
        (
            event_words(event)
            for event in reversed(evidence.events)
            if event_object(event) == job and str(event.get("reason")).startswith("FailedCreate")
        ),
        "",
    )


def lasting(evidence: Evidence) -> str:
    """Return what `told` does where no waiting mends it; or an empty string."""
    words = told(evidence)
    return words if admission.lasts(words) else ""


@dataclass
class RefusalWatch:
    """Remembers since when the operator has been refused the pods of a job, as no waiting mends."""

    limits: Limits
    _since: float | None = None

    def fatal(self, evidence: Evidence, now: float) -> str:
        """Finds a refusal that has lasted longer than its grace: what it lacks may be made yet.

        Args:
            evidence: What was seen of the job.
            now: The time, by the clock that all calls use.

        Returns:
            The words; empty while there is none, in the queue, and once there has been a pod:
            then it is past.
        """
        past = evidence.pods or job_state(evidence.job).phase is Phase.QUEUED
        words = "" if past else lasting(evidence)
        if not words:
            self._since = None
            return ""
        self._since = now if self._since is None else self._since
        return words if now - self._since >= self.limits.refusal_grace else ""

    def forgive(self) -> None:
        """Begins anew: nobody could tell that it was over."""
        self._since = None

    def next_deadline(self) -> float | None:
        """The time at which a refusal that lasts would become fatal, or None."""
        return None if self._since is None else self._since + self.limits.refusal_grace


def find(evidence: Evidence) -> Iterator[Finding]:
    """Yield why the operator could create no pod: a quota, a webhook, a security policy."""
    job = podview.name(evidence.job)
    placed = [p for p in evidence.pods.values() if podview.dig(p, "spec", "nodeName")]
    if placed and len(placed) == len(evidence.pods) >= len(podview.nodes(evidence.job)):
        return
    for event in reversed(evidence.events):
        words = event_words(event)
        if event.get("type") == "Normal" or event_object(event) != job:
            continue
        if "exceeded quota" in words:
            yield Finding(
                NO_PODS, f"The namespace's quota is used up: {words}", admission.advice(words)
            )
            return
        if "violates PodSecurity" in words:
            yield Finding(
                NO_PODS, f"The namespace does not allow such pods: {words}", admission.advice(words)
            )
            return
        reason = str(event.get("reason") or "")
        if not evidence.pods and GANG.search(words):
            yield Finding(
                NO_PODS, f"The job's pods are not let in ({reason}): {words}", GANG_ADVICE
            )
            return
        if re.search(r"denied the request|is forbidden|FailedCreate", f"{words} {reason}"):
            yield Finding(
                NO_PODS,
                f"The operator cannot create the pods ({reason}): {words}",
                admission.advice(words),
            )
            return
