"""What the scheduler says of pods that no node takes, and what to do about it. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kfp_pytorch.launcher import patterns
from kfp_pytorch.launcher.diagnosis.pod_causes import UNSCHEDULABLE, VOLUME, Finding
from kfp_pytorch.launcher.kubernetes import objects, pod_status
from kfp_pytorch.launcher.kubernetes.events import autoscaler_words
from kfp_pytorch.launcher.text import some
from kfp_pytorch.launcher.waiting.evidence import Evidence

GANG = re.compile(r"in gang|pod ?group", re.IGNORECASE)
GANG_ADVICE = (
    "The gang scheduler starts all pods together or none: ask for less, use fewer nodes, or wait "
    "with a longer start_timeout until the cluster has room for all of them at once."
)
# The first of these that fits explains all of it.
_ALONE = (
    (GANG, GANG_ADVICE),
    (
        re.compile(r"scheduling gates"),
        "Whoever put the gates on the pods has not taken them away, such as a queue (Kueue) that "
        "has not let them in: kubectl get pod -o yaml shows them in spec.schedulingGates.",
    ),
    (
        re.compile(r"persistentvolumeclaim .* not found"),
        "Create the claim in the job's namespace, or correct output_uri.",
    ),
    (
        re.compile(r"persistentvolumeclaim .* is being deleted"),
        "The claim goes as soon as nothing uses it any more: create another, and name it in "
        "output_uri.",
    ),
    (
        re.compile(r"ReadWriteOncePod"),
        "The claim can be used by one pod only, and another has it: give it the access mode "
        "ReadWriteMany, or wait until that pod ends.",
    ),
    (
        re.compile(r"unbound|volume"),
        "The claim is not bound or lies elsewhere: look at it with kubectl describe pvc.",
    ),
)
# Each of these that fits is about some of the nodes.
_EACH = (
    (
        re.compile(r"Insufficient ([\w./-]*\w)"),
        "Ask for less {}, use fewer nodes, or wait with a longer start_timeout until the cluster "
        "has room.",
    ),
    (
        re.compile(r"untolerated taint|had taint"),
        "Name the taint in tolerations, if the job may run on those nodes.",
    ),
    (
        re.compile(r"node affinity|selector"),
        "Compare node_selector and affinity with kubectl get nodes --show-labels.",
    ),
    (
        re.compile(r"Too many pods"),
        "Nodes have as many pods as they may: wait with a longer start_timeout.",
    ),
    (
        re.compile(r"were unschedulable"),
        "Nodes are cordoned: an administrator lets pods on them again with kubectl uncordon.",
    ),
)
_OTHER = (
    "Compare node_selector, tolerations and affinity with the cluster's nodes "
    "(kubectl get nodes --show-labels; kubectl describe nodes shows taints)."
)


def find(evidence: Evidence) -> Iterator[Finding]:
    """Yield what the scheduler says, once for pods that it says the same of.

    Args:
        evidence: What was seen of the job.
    """
    pods = [*pod_status.in_order(evidence.pods.values()), *evidence.past_pods]
    found: dict[str, list[str]] = {}
    for pod in pods:
        scheduled = objects.condition(pod, "PodScheduled")
        if scheduled.get("status") == "False":
            words = str(scheduled.get("message") or scheduled.get("reason") or "")
            found.setdefault(words, []).append(objects.name(pod))
    for whole, names in found.items():
        # What preemption would do is no reason of its own.
        words = whole.partition(" preemption:")[0]
        claim = re.search(r"persistentvolumeclaim|unbound|volume", words, re.IGNORECASE)
        scaling = autoscaler_words(evidence.events)
        yield Finding(
            VOLUME + 3 if claim else UNSCHEDULABLE,
            f"No node takes {some(names)} ({len(names)} of {len(pods)} pods). The scheduler says: "
            f"{words.rstrip('.')}" + (f"; {scaling}" if scaling else ""),
            advice(words),
        )


def advice(words: str) -> str:
    """Return what to do about what the scheduler says.

    Args:
        words: Its message.
    """
    whole = patterns.advice(_ALONE, words)
    if whole:
        return whole
    parts = [
        text.format(*match.groups()) for pattern, text in _EACH if (match := pattern.search(words))
    ]
    return " ".join(parts) or _OTHER
