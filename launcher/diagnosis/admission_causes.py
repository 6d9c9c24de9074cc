"""Causes: the cluster does not let the operator create pods. A quota, a webhook, a policy."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kfp_pytorch.launcher.diagnosis.pod_causes import NO_PODS, Finding
from kfp_pytorch.launcher.diagnosis.scheduling import GANG, GANG_ADVICE
from kfp_pytorch.launcher.kubernetes import admission, objects, pod_status
from kfp_pytorch.launcher.kubernetes.events import event_object, event_words
from kfp_pytorch.launcher.waiting.evidence import Evidence


def find(evidence: Evidence) -> Iterator[Finding]:
    """Yield why the operator could create no pod: a quota, a webhook, a security policy."""
    job = objects.name(evidence.job)
    placed = [p for p in evidence.pods.values() if objects.dig(p, "spec", "nodeName")]
    if placed and len(placed) == len(evidence.pods) >= len(pod_status.nodes(evidence.job)):
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
