"""Checks of the namespace's quotas against what the run asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator

from kfp_pytorch.launcher.constants import LIMIT_RANGE, RESOURCE_QUOTA
from kfp_pytorch.launcher.inputs import k8s
from kfp_pytorch.launcher.jobs.registry import KINDS
from kfp_pytorch.launcher.kubernetes import objects
from kfp_pytorch.launcher.kubernetes.objects import Object, dig, each
from kfp_pytorch.launcher.readiness.findings import Finding, error, ok, warning
from kfp_pytorch.launcher.readiness.needs import Needs
from kfp_pytorch.launcher.readiness.survey import Survey, Unreadable
from kfp_pytorch.launcher.text import some

_ABOUT = "quota"
# A quota that limits these has each container state them.
_STATED = {
    **dict.fromkeys(("cpu", "requests.cpu", "limits.cpu"), "cpu"),
    **dict.fromkeys(("memory", "requests.memory", "limits.memory"), "memory"),
}
# Quotas with these scopes count the pods of a job; with others they count other pods.
_OF_JOBS = {"NotTerminating", "NotBestEffort"}


def quotas(survey: Survey, needs: Needs) -> Iterator[Finding]:
    """No quota of the namespace refuses the run."""
    if not needs.trains:
        return
    found = [quota for quota in survey.list(RESOURCE_QUOTA) if _counts_jobs(quota)]
    problems = [problem for quota in found for problem in _exceeded(survey, quota, needs)]
    unstated = dict.fromkeys(each for quota in found for each in _unstated(quota, needs))
    if unstated:
        problems += _demanded(survey, list(unstated), objects.name(found[0]))
    yield from problems
    if not problems:
        names = some([objects.name(quota) for quota in found])
        words = f"The run fits into {names}." if found else "The namespace has none."
        yield ok(_ABOUT, words)


def _counts_jobs(quota: Object) -> bool:
    scopes = set(dig(quota, "spec", "scopes") or [])
    return scopes <= _OF_JOBS and not dig(quota, "spec", "scopeSelector")


def _asked(needs: Needs) -> dict[str, float]:
    """What the run adds to a quota, by every name that a quota may have for it."""
    asked = {"pods": float(needs.num_nodes), "count/pods": float(needs.num_nodes)}
    for name in needs.components:
        if name in KINDS:
            kind = KINDS[name].resource
            asked[f"count/{kind.plural}.{kind.group}"] = 1.0
    for resource, amount in needs.amounts.items():
        for group in ("requests.", "limits.", *([""] if resource in _STATED else [])):
            asked[f"{group}{resource}"] = amount * needs.num_nodes
    return asked


def _exceeded(survey: Survey, quota: Object, needs: Needs) -> Iterator[Finding]:
    name, hard, asked = objects.name(quota), _hard(quota), _asked(needs)
    in_use = dig(quota, "status", "used") or {}
    over = {}
    for key, limit in hard.items():
        used = k8s.quantity_value(str(in_use.get(key) or "0")) or 0.0
        most = k8s.quantity_value(limit) or 0.0
        if key in asked and used + asked[key] > most:
            over[key] = (used, asked[key], most)
    if not over:
        return
    told = [
        f"{key}: the run asks for {more:g}, {used:g} is used, the limit is {most:g}"
        for key, (used, more, most) in over.items()
    ]
    raised = {key: _written(used + more) for key, (used, more, _) in over.items()}
    patch = json.dumps({"spec": {"hard": raised}}, separators=(",", ":"))
    wait = "" if any(more > most for _, more, most in over.values()) else " Wait for it, or "
    yield error(
        _ABOUT,
        f"ResourceQuota {survey.namespace}/{name} would refuse pods of the run: {'; '.join(told)}.",
        f"{wait}kubectl patch resourcequota {name} -n {survey.namespace} --type merge -p "
        f"'{patch}'".strip(),
    )


def _unstated(quota: Object, needs: Needs) -> Iterator[str]:
    for key in _hard(quota):
        resource = _STATED.get(key)
        if resource and resource not in needs.amounts:
            yield resource


def _demanded(survey: Survey, resources: list[str], quota: str) -> list[Finding]:
    """Containers must state these, unless a LimitRange does it for them."""
    try:
        ranges = survey.list(LIMIT_RANGE)
    except Unreadable as reason:
        words = f"ResourceQuota {survey.namespace}/{quota} has each container state "
        words += f"{some(resources)}; whether a LimitRange does is not known: this account may not "
        return [warning(_ABOUT, f"{words}{reason}.", f"Set {some(resources)}.")]
    limits = [item for limit in ranges for item in each(limit, "spec", "limits")]
    defaults = {name for item in limits for name in dig(item, "default") or {}}
    left = [resource for resource in resources if resource not in defaults]
    if not left:
        return []
    return [
        error(
            _ABOUT,
            f"ResourceQuota {survey.namespace}/{quota} refuses pods that do not state "
            f"{some(left)}, and the run gives none.",
            f"Set {some(left)}; or have an administrator make a LimitRange with defaults, which "
            "covers the operator's own init container as well.",
        )
    ]


def _hard(quota: Object) -> dict[str, str]:
    return {key: str(each) for key, each in (dig(quota, "spec", "hard") or {}).items()}


def _written(amount: float) -> str:
    """An amount as a quantity."""
    return f"{amount:.0f}" if amount.is_integer() else f"{round(amount * 1000)}m"
