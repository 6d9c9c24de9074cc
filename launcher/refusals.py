"""What events say of pods that the cluster does not let the operator create."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kfp_pytorch.launcher import admission, podview
from kfp_pytorch.launcher.evidence import Evidence
from kfp_pytorch.launcher.findings import NO_PODS, Finding, event_object, event_words
from kfp_pytorch.launcher.scheduling import GANG, GANG_ADVICE


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
