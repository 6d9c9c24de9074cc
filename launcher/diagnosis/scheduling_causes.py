"""Causes: no node takes a pod, by the scheduler's messages. Pure functions of the facts."""

from __future__ import annotations

import re

from kfp_pytorch.launcher import patterns
from kfp_pytorch.launcher.diagnosis.facts import Cause, Facts
from kfp_pytorch.launcher.kubernetes import objects
from kfp_pytorch.launcher.kubernetes.events import autoscaler_message, event_object
from kfp_pytorch.launcher.kubernetes.objects import name
from kfp_pytorch.launcher.kubernetes.pod_status import pod_phase
from kfp_pytorch.launcher.text import some

DEFAULT_SCHEDULER = "default-scheduler"
_PREEMPTION = re.compile(r"(?:\. [^.]*| )\bpreemption: ?")
_CLAIM = re.compile(r"persistentvolumeclaim|unbound|volume", re.IGNORECASE)
_OTHER = (
    "Compare node_selector, tolerations and affinity with the cluster's nodes "
    "(kubectl get nodes --show-labels; kubectl describe nodes shows taints)."
)


def unusable_claim(facts: Facts) -> Cause | None:
    """A pod's claim does not exist, is not bound, or can be used on another node only."""
    return _unscheduled(facts, about_claims=True)


def unschedulable(facts: Facts) -> Cause | None:
    """No node has room for a pod, or may take it."""
    return _unscheduled(facts, about_claims=False)


def no_scheduler(facts: Facts) -> Cause | None:
    """No scheduler has looked at pods that are for another than the cluster's own."""
    by_scheduler: dict[str, list[str]] = {}
    for pod in facts.pods:
        asked = str(objects.dig(pod, "spec", "schedulerName") or DEFAULT_SCHEDULER)
        unseen = not objects.condition(pod, "PodScheduled") and pod_phase(pod) == "Pending"
        events = (event for event in facts.evidence.events if event_object(event) == name(pod))
        if asked != DEFAULT_SCHEDULER and unseen and next(events, None) is None:
            by_scheduler.setdefault(asked, []).append(name(pod))
    for asked, names in by_scheduler.items():
        return Cause(
            f"No scheduler has looked at {some(names)} ({len(names)} of {len(facts.pods)} pods), "
            f"which are for {asked!r}",
            "Is a scheduler of that name installed, and does it run? The input scheduling, or a "
            "schedulerName in pod_template_patch, asks for it.",
        )
    return None


def _unscheduled(facts: Facts, *, about_claims: bool) -> Cause | None:
    """Return what the scheduler says, once for pods that it says the same of."""
    pods_by_words: dict[str, list[str]] = {}
    for pod in facts.all_pods:
        scheduled = objects.condition(pod, "PodScheduled")
        if scheduled.get("status") == "False":
            whole = str(scheduled.get("message") or scheduled.get("reason") or "")
            words = _without_preemption(whole)
            if bool(_CLAIM.search(words)) == about_claims:
                pods_by_words.setdefault(words, []).append(objects.name(pod))
    if not pods_by_words:
        return None
    scaling = autoscaler_message(facts.evidence.events)
    headline = ". ".join(
        f"No node takes {some(names)} ({len(names)} of {len(facts.all_pods)} pods). The scheduler "
        f"says: {words}"
        for words, names in pods_by_words.items()
    )
    more = f"; {scaling}" if scaling else ""
    return Cause(f"{headline}{more}", advice(" ".join(pods_by_words)))


def _without_preemption(words: str) -> str:
    """Leave out what preemption would do: it is no reason of its own.

    Kubernetes 1.34 writes `REASONS. no new claims to deallocate, preemption: OUTCOME`, older ones
    `REASONS. preemption: OUTCOME`.
    """
    return _PREEMPTION.split(words, maxsplit=1)[0].rstrip(".")


def advice(words: str) -> str:
    """Return what to do about what the scheduler says."""
    whole = patterns.advice("gang", words) or patterns.advice("unschedulable", words)
    if whole:
        return whole
    parts = [text.format(*match.groups()) for match, text in patterns.every("node", words)]
    return " ".join(parts) or _OTHER
