"""Causes: no node takes a pod, in the scheduler's words. Pure functions of the facts."""

from __future__ import annotations

import re

from kfp_pytorch.launcher import patterns
from kfp_pytorch.launcher.diagnosis.facts import Cause, Facts
from kfp_pytorch.launcher.kubernetes import objects
from kfp_pytorch.launcher.kubernetes.events import autoscaler_message
from kfp_pytorch.launcher.text import some

_PREEMPTION = re.compile(r"(?:\. [^.]*| )\bpreemption: ?")
_CLAIM = re.compile(r"persistentvolumeclaim|unbound|volume", re.IGNORECASE)
GANG = r"(?i)in gang|pod ?group"
GANG_ADVICE = (
    "The gang scheduler starts all pods together or none: ask for less, use fewer nodes, or wait "
    "with a longer start_timeout until the cluster has room for all of them at once."
)
# The first of these that fits explains all of it.
_ALONE = (
    (GANG, GANG_ADVICE),
    (
        r"scheduling gates",
        "Whoever put the gates on the pods has not taken them away, such as a queue (Kueue) that "
        "has not let them in: kubectl get pod -o yaml shows them in spec.schedulingGates.",
    ),
    (
        r"persistentvolumeclaim .* not found",
        "Create the claim in the job's namespace, or correct output_uri.",
    ),
    (
        r"persistentvolumeclaim .* is being deleted",
        "The claim is deleted as soon as nothing uses it any more: create another, and name it in "
        "output_uri.",
    ),
    (
        r"ReadWriteOncePod",
        "The claim can be used by one pod only, and another has it: give it the access mode "
        "ReadWriteMany, or wait until that pod ends.",
    ),
    (
        r"unbound|volume",
        "The claim is not bound, or is in another zone: see `kubectl describe pvc`.",
    ),
)
# Each of these that fits is about some of the nodes.
_EACH = (
    (
        r"Insufficient ([\w./-]*\w)",
        "Ask for less {}, use fewer nodes, or wait with a longer start_timeout until the cluster "
        "has room.",
    ),
    (
        r"untolerated taint|had taint",
        "Name the taint in tolerations, if the job may run on those nodes.",
    ),
    (
        r"node affinity|selector",
        "Compare node_selector and affinity with kubectl get nodes --show-labels.",
    ),
    (r"Too many pods", "Nodes have reached their limit of pods: wait with a longer start_timeout."),
    (
        r"were unschedulable",
        "Nodes are cordoned: an administrator makes them schedulable with `kubectl uncordon`.",
    ),
)
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
    whole = patterns.advice(_ALONE, words)
    if whole:
        return whole
    parts = [
        text.format(*match.groups())
        for pattern, text in _EACH
        if (match := re.search(pattern, words))
    ]
    return " ".join(parts) or _OTHER
