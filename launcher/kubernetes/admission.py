"""What the message of a refusal at admission means, for a job and for its pods. No I/O.

Quotas, LimitRanges, Pod Security and webhooks all answer with a message alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kfp_pytorch.launcher.text import some


@dataclass(frozen=True)
class Refusal:
    """One kind of refusal."""

    substring: str  # a part of its message
    advice: str  # what to do about it
    permanent: bool = True  # whether no waiting mends it


# The first that fits counts.
_REFUSALS = (
    Refusal(
        "exceeded quota",
        "Ask for less, wait until other jobs end, or ask for a larger quota. A queue (Kueue) lets "
        "a job wait instead: label kueue.x-k8s.io/queue-name.",
        permanent=False,
    ),
    Refusal(
        "failed calling webhook",
        "The webhook that is named does not answer: an administrator looks at what serves it.",
        permanent=False,
    ),
    Refusal(
        "already exists",
        "A pod of that name is left of an earlier job: look at it, and delete it if nobody needs "
        "it.",
        permanent=False,
    ),
    Refusal(
        "denied the request",
        "Change what that webhook objects to, or ask who runs it.",
        permanent=False,
    ),
    Refusal("error looking up service account", "Create the account, or correct service_account."),
    Refusal(
        "no PriorityClass", "Create the class, or correct priorityClassName in pod_template_patch."
    ),
    Refusal("RuntimeClass", "Create the class, or correct runtimeClassName in pod_template_patch."),
    Refusal("failed quota", "Set cpu and memory: the namespace's quota counts them."),
    Refusal(
        " usage per ",
        "The namespace's LimitRange does not allow that much, or that little: change cpu, memory "
        "or the number of GPUs (kubectl describe limitrange shows what it allows).",
    ),
    Refusal(
        " request ratio per ",
        "The namespace's LimitRange bounds how far a limit may be above its request: set cpu and "
        "memory, which become both.",
    ),
    Refusal(
        "insufficient quota to match these scopes",
        "The namespace has no quota for that priority class: take another one, by "
        "priorityClassName in pod_template_patch, or ask for such a quota.",
    ),
    Refusal(
        "security context constraint",
        "OpenShift lets pods run as a user of the namespace's own range: set run_as_user to 0, so "
        "that it chooses one, or give service_account a constraint that allows what is named.",
    ),
    Refusal(
        "violates PodSecurity",
        "Leave run_as_root off and the security context as it is by default.",
    ),
    Refusal("is being terminated", "The namespace is being deleted: use another one."),
    Refusal(
        "entity too large", "Pass large values as an artifact, in the image, or in a ConfigMap."
    ),
    Refusal(
        " is invalid: ",
        "Correct that field, or the input that it comes from: pod_template_patch, where the step "
        "has one.",
    ),
)
_CONTAINERS = re.compile(r'container "([^"]+)"|containers ("[^)]+?) must')


def is_permanent(message: str) -> bool:
    """Tell whether no waiting mends a refusal."""
    found = _kind(message)
    return found is not None and found.permanent


def advice(message: str, *, container: str = "", added: Mapping[str, str] | None = None) -> str:
    """Return what to do about a refusal.

    `container`: the container of a pod that the step itself describes; `added`: advice about
    containers that an operator adds, by their names.
    """
    found = _kind(message)
    if found is None:
        return "Change what the cluster objects to, or ask its administrator."
    others = (
        _other_containers(message, container) if found.substring == "violates PodSecurity" else []
    )
    for name, about in (added or {}).items():
        if name in others:
            return about
    if others:
        return (
            f"The container {some(others)} breaks it, which this step does not make: keep what "
            "injects it away from training pods, or correct it in pod_template_patch."
        )
    return found.advice


def _kind(message: str) -> Refusal | None:
    return next((refusal for refusal in _REFUSALS if refusal.substring in message), None)


def _other_containers(message: str, own: str) -> list[str]:
    """The containers that a refusal names, but for the step's own."""
    named = " ".join("".join(match) for match in _CONTAINERS.findall(message))
    return sorted(set(re.findall(r"[\w.-]+", named)) - {own})
