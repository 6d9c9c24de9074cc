"""What the message of a refusal at admission means, for a job and for its pods. No I/O.

Quotas, LimitRanges, Pod Security and webhooks all answer with a message alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kfp_pytorch.launcher import patterns
from kfp_pytorch.launcher.text import some

_POD_SECURITY = "violates PodSecurity"
_CONTAINERS = re.compile(r'container "([^"]+)"|containers ("[^)]+?) must')


def is_permanent(message: str) -> bool:
    """Whether a refusal stays, however long one waits."""
    temporary = patterns.advice("temporary_refusal", message)
    return not temporary and bool(patterns.advice("refusal", message))


def advice(message: str, *, container: str = "", added: Mapping[str, str] | None = None) -> str:
    """Return what to do about a refusal.

    `container`: the container of a pod that the step itself describes; `added`: advice about
    containers that an operator adds, by their names.
    """
    temporary = patterns.advice("temporary_refusal", message)
    match, text = patterns.first("refusal", message)
    if temporary or match is None:
        return temporary or "Change what the cluster objects to, or ask its administrator."
    others = _other_containers(message, container) if match[0] == _POD_SECURITY else []
    for name, about in (added or {}).items():
        if name in others:
            return about
    if others:
        return (
            f"The container {some(others)} breaks it, which this step does not make: keep what "
            "injects it away from training pods, or correct it in pod_template_patch."
        )
    return text


def _other_containers(message: str, own: str) -> list[str]:
    """The containers that a refusal names, but for the step's own."""
    named = " ".join("".join(match) for match in _CONTAINERS.findall(message))
    return sorted(set(re.findall(r"[\w.-]+", named)) - {own})
