"""Whether a service already is as wanted, though KServe rewrote it."""

from __future__ import annotations

from kfp_pytorch.launcher.inputs import k8s
from kfp_pytorch.launcher.kubernetes.objects import Object, dig

_AMOUNTS = ("requests", "limits")


def is_in_place(existing: Object, wanted: Object) -> bool:
    """Return whether a write of `wanted` would change nothing.

    KServe fills in fields that are left out, and writes quantities in a form of its own.
    """
    # Without the field the canary's share of the traffic is all.
    percent = ("spec", "predictor", "canaryTrafficPercent")
    # A list is written whole, so that one without canaries has no field either.
    canaries = ("spec", "canary")
    return (
        _contains(existing, wanted)
        and dig(existing, *percent) == dig(wanted, *percent)
        and bool(dig(existing, *canaries)) == bool(dig(wanted, *canaries))
    )


def _contains(existing: object, wanted: object) -> bool:
    if isinstance(wanted, dict) and isinstance(existing, dict):
        return all(
            (_same_amounts if key in _AMOUNTS else _contains)(existing.get(key), value)
            for key, value in wanted.items()
        )
    if isinstance(wanted, list) and isinstance(existing, list):
        return len(existing) == len(wanted) and all(map(_contains, existing, wanted))
    if existing is None and (wanted in ("", [], {}) or wanted is False):
        # KServe's webhook writes it anew without what is empty, as Go's `omitempty` has it.
        return True
    return existing == wanted


def _same_amounts(existing: object, wanted: object) -> bool:
    if not isinstance(existing, dict) or not isinstance(wanted, dict):
        return existing == wanted
    return all(
        k8s.quantity_value(str(existing.get(name))) == k8s.quantity_value(str(amount))
        for name, amount in wanted.items()
    )
