"""Causes that the job's own object and events show. Each is a pure function of the facts."""

from __future__ import annotations

import re

from kfp_pytorch.launcher import patterns
from kfp_pytorch.launcher.diagnosis.facts import Cause, Facts
from kfp_pytorch.launcher.inputs.scheduling.demands import KUEUE_QUEUE_LABEL
from kfp_pytorch.launcher.jobs.kind import JobKind
from kfp_pytorch.launcher.jobs.state import Phase
from kfp_pytorch.launcher.kubernetes import objects, pending
from kfp_pytorch.launcher.kubernetes.events import event_message
from kfp_pytorch.launcher.waiting import refused_pods


def check_the_operator(kind: JobKind) -> str:
    """Return what to do about an operator that does not answer."""
    return f"Check that the operator runs ({kind.operator_pods}) and watches this namespace."


def pods_refused(facts: Facts) -> Cause | None:
    """The cluster does not let the operator create pods: a quota, a webhook, a security policy."""
    evidence = facts.evidence
    job = objects.name(evidence.job)
    there = [p for p in facts.pods if evidence.living is None or objects.name(p) in evidence.living]
    placed = [p for p in there if objects.dig(p, "spec", "nodeName")]
    if placed and len(placed) == len(there) >= facts.kind.num_nodes(evidence.job):
        return None
    for event in reversed(evidence.events):
        words = event_message(event)
        if event.get("type") == "Normal" or not facts.kind.is_about_pods(event, job):
            continue
        found = _refusal(facts, words, str(event.get("reason") or ""))
        if found:
            return found
    return None


def _refusal(facts: Facts, words: str, reason: str) -> Cause | None:
    if "exceeded quota" in words:
        headline = "The namespace's quota is used up"
    elif "violates PodSecurity" in words:
        headline = "The namespace does not allow such pods"
    elif not facts.pods and (advice := patterns.advice("gang", words)):
        return Cause(f"The job's pods are not let in ({reason}): {words}", advice)
    elif re.search(r"denied the request|is forbidden|FailedCreate", f"{words} {reason}"):
        headline = f"The operator cannot create the pods ({reason})"
    else:
        return None
    return Cause(f"{headline}: {words}", facts.kind.refusal_advice(words))


def operator_deadline(facts: Facts) -> Cause | None:
    """The operator ended the job at its activeDeadlineSeconds."""
    state = facts.state
    if state.phase is not Phase.FAILED or "deadline" not in state.message.lower():
        return None
    return Cause(
        f"The operator ended the job at its deadline: {state.message}",
        "Raise active_deadline, or make training shorter.",
    )


def suspended(facts: Facts) -> Cause | None:
    """The job waits in a queue."""
    if facts.state.phase is not Phase.QUEUED:
        return None
    events = facts.evidence.events
    why = pending.reason((), events)
    queue = objects.dig(facts.evidence.job, "metadata", "labels", KUEUE_QUEUE_LABEL)
    if queue and events and not pending.has_workload(events):
        return Cause(
            f"The job is suspended for the queue {queue!r}, and no event says that Kueue made a "
            "Workload of it",
            "Check that Kueue's controller runs (kubectl get pods -n kueue-system), and that it "
            "manages this namespace.",
        )
    return Cause(
        "The job is suspended: it still waits in its queue" + (f" ({why})" if why else ""),
        patterns.advice("end", "queue"),
    )


def not_acknowledged(facts: Facts) -> Cause | None:
    """The operator has written no condition, made no pod and reported no refusal."""
    evidence = facts.evidence
    silent = facts.state.phase is Phase.UNACKNOWLEDGED and not facts.pods
    if not silent or refused_pods.last_refusal(evidence) or not evidence.job:
        return None
    return Cause(
        f"The {facts.kind.operator} has not acknowledged the job: it has no condition and no pod",
        check_the_operator(facts.kind),
    )
