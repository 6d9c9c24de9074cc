"""What events say of pods that the cluster does not let the operator create."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kfp_pytorch.launcher import podview
from kfp_pytorch.launcher.constants import PYTORCH_CONTAINER
from kfp_pytorch.launcher.evidence import Evidence
from kfp_pytorch.launcher.findings import NO_PODS, Finding, event_object, event_words
from kfp_pytorch.launcher.podview import some
from kfp_pytorch.launcher.scheduling import GANG, GANG_ADVICE

# What no waiting mends, and what to do about it.
_LASTING = (
    ("error looking up service account", "Create the account, or correct service_account."),
    ("no PriorityClass", "Create the class, or correct priorityClassName in pod_template_patch."),
    ("RuntimeClass", "Create the class, or correct runtimeClassName in pod_template_patch."),
    ("failed quota", "Set cpu and memory: the namespace's quota counts them."),
    (
        " usage per ",
        "The namespace's LimitRange does not allow that much, or that little: change cpu, memory "
        "or gpus_per_node (kubectl describe limitrange shows what it allows).",
    ),
    ("violates PodSecurity", "Leave run_as_root off and the security context as it is by default."),
    ("is being terminated", "The namespace is being deleted: train in another one."),
    (" is invalid: ", "Correct that field: most likely it comes from pod_template_patch."),
)
# What may pass.
_PASSING = (
    ("denied the request", "Change what that webhook objects to, or ask who runs it."),
    (
        "failed calling webhook",
        "The webhook that is named does not answer: an administrator looks at what serves it.",
    ),
    (
        "already exists",
        "A pod of that name is left of an earlier job: look at it, and delete it if nobody needs "
        "it.",
    ),
)
_CONTAINERS = re.compile(r'container "([^"]+)"|containers ("[^)]+?) must')


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
                NO_PODS, f"The namespace does not allow such pods: {words}", _security_advice(words)
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
        (advice for part, advice in (*_PASSING, *_LASTING) if part in words),
        "Change what the cluster objects to, or ask its administrator.",
    )


def _security_advice(words: str) -> str:
    named = {
        name
        for match in _CONTAINERS.findall(words)
        for name in re.findall(r"[\w.-]+", "".join(match))
    }
    others = sorted(named - {PYTORCH_CONTAINER})
    if "init-pytorch" in others:
        return (
            "The operator's own init container breaks it: an administrator gives that one a "
            "securityContext by the operator's flag --pytorch-init-container-template-file."
        )
    if others:
        return (
            f"The container {some(others)} breaks it, which this step does not make: keep what "
            "injects it away from training pods, or correct it in pod_template_patch."
        )
    return _creation_advice("violates PodSecurity")


_QUOTA_ADVICE = (
    "Ask for less, wait until other jobs end, or ask for a larger quota. A queue (Kueue) lets a "
    "job wait instead: label kueue.x-k8s.io/queue-name."
)
