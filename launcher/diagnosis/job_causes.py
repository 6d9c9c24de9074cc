"""Causes that the job's own object and events show. Each is a pure function of the facts."""

from __future__ import annotations

import re

from kfp_pytorch.launcher.diagnosis.facts import Cause, Facts
from kfp_pytorch.launcher.diagnosis.scheduling_causes import GANG, GANG_ADVICE
from kfp_pytorch.launcher.kubernetes import admission, objects, pending, pod_status
from kfp_pytorch.launcher.kubernetes.events import event_message, event_object
from kfp_pytorch.launcher.waiting import refusals

CHECK_THE_OPERATOR = (
    "Check that the operator runs (kubectl get pods -A -l "
    "app.kubernetes.io/name=training-operator) and watches this namespace."
)


def pods_refused(facts: Facts) -> Cause | None:
    """The cluster does not let the operator create pods: a quota, a webhook, a security policy."""
    evidence = facts.evidence
    job = objects.name(evidence.job)
    placed = [p for p in facts.pods if objects.dig(p, "spec", "nodeName")]
    if placed and len(placed) == len(facts.pods) >= len(pod_status.nodes(evidence.job)):
        return None
    for event in reversed(evidence.events):
        words = event_message(event)
        if event.get("type") == "Normal" or event_object(event) != job:
            continue
        found = _refusal(words, str(event.get("reason") or ""), bool(evidence.pods))
        if found:
            return found
    return None


def _refusal(words: str, reason: str, has_pods: bool) -> Cause | None:
    if "exceeded quota" in words:
        headline = "The namespace's quota is used up"
    elif "violates PodSecurity" in words:
        headline = "The namespace does not allow such pods"
    elif not has_pods and re.search(GANG, words):
        return Cause(f"The job's pods are not let in ({reason}): {words}", GANG_ADVICE)
    elif re.search(r"denied the request|is forbidden|FailedCreate", f"{words} {reason}"):
        headline = f"The operator cannot create the pods ({reason})"
    else:
        return None
    return Cause(f"{headline}: {words}", admission.advice(words))


def operator_deadline(facts: Facts) -> Cause | None:
    """The operator ended the job at its activeDeadlineSeconds."""
    words = _failed_message(facts)
    if "deadline" not in words.lower():
        return None
    return Cause(
        f"The operator ended the job at its deadline: {words}",
        "Raise active_deadline, or make training shorter.",
    )


def suspended(facts: Facts) -> Cause | None:
    """The job waits in a queue."""
    if not _is_suspended(facts):
        return None
    why = pending.reason((), facts.evidence.events)
    return Cause(
        "The job is suspended: it still waits in its queue" + (f" ({why})" if why else ""),
        pending.QUEUE_ADVICE,
    )


def not_acknowledged(facts: Facts) -> Cause | None:
    """The operator has written no condition, made no pod and reported no refusal."""
    evidence = facts.evidence
    conditions = objects.each(evidence.job, "status", "conditions")
    answered = conditions or evidence.pods or refusals.told(evidence) or _is_suspended(facts)
    if answered or not evidence.job:
        return None
    return Cause(
        "The Training Operator has not acknowledged the job: it has no condition and no pod",
        CHECK_THE_OPERATOR,
    )


def _is_suspended(facts: Facts) -> bool:
    job = facts.evidence.job
    failed = objects.condition(job, "Failed").get("status") == "True"
    return objects.dig(job, "spec", "runPolicy", "suspend") is True and not failed


def _failed_message(facts: Facts) -> str:
    failed = objects.condition(facts.evidence.job, "Failed")
    return str(failed.get("message") or "") if failed.get("status") == "True" else ""
