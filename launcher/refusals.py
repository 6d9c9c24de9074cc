"""What events say of pods that the cluster does not let the operator create."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kfp_pytorch.launcher import podview
from kfp_pytorch.launcher.evidence import Evidence
from kfp_pytorch.launcher.findings import (
    GANG,
    GANG_ADVICE,
    NO_PODS,
    Finding,
    event_object,
    event_words,
)

# What no waiting mends, and what to do about it.
_LASTING = (
    ("error looking up service account", "Create the account, or correct service_account."),
    ("no PriorityClass", "Create the class, or correct priorityClassName in pod_template_patch."),
    ("RuntimeClass", "Create the class, or correct runtimeClassName in pod_template_patch."),
    ("failed quota", "Set cpu and memory: the namespace's quota counts them."),
    (" is invalid: ", "Correct that field: most likely it comes from pod_template_patch."),
)


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
    return words if any(part in words for part, _ in _LASTING) else ""


def find(evidence: Evidence) -> Iterator[Finding]:
    """Yield why the operator could create no pod: a quota, a webhook, a security policy."""
    job = podview.name(evidence.job)
    if evidence.pods and all(
        podview.dig(pod, "spec", "nodeName") for pod in evidence.pods.values()
    ):
        return
    for event in reversed(evidence.events):
        words = event_words(event)
        if event.get("type") == "Normal" or event_object(event) != job:
            continue
        if "exceeded quota" in words:
            yield Finding(NO_PODS, f"The namespace's quota is used up: {words}", _QUOTA_ADVICE)
            return
        if "violates PodSecurity" in words:
            yield Finding(
                NO_PODS,
                f"The namespace does not allow such pods: {words}",
                "The operator's own init container breaks it: an administrator gives that one a "
                "securityContext by the operator's flag --pytorch-init-container-template-file."
                if "init-pytorch" in words
                else "Leave run_as_root off and the security context as it is by default.",
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
                _creation_advice(words),
            )
            return


def _creation_advice(words: str) -> str:
    return next(
        (advice for part, advice in _LASTING if part in words),
        "Change what the cluster objects to, or ask its administrator.",
    )


_QUOTA_ADVICE = (
    "Ask for less, wait until other jobs end, or ask for a larger quota. A queue (Kueue) lets a "
    "job wait instead: label kueue.x-k8s.io/queue-name."
)
