"""Checks the claims that a step's pods want."""

from __future__ import annotations

from kfp_pytorch.launcher.constants import CLAIM
from kfp_pytorch.launcher.errors import CannotObserve, InputError
from kfp_pytorch.launcher.kubernetes.api_errors import ApiError, NotFound
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.runtime.printing import log


def check_claim(kube: Kube, claim: str, wanted: str, advice: str) -> None:
    """Refuse a claim that is not there: pods that want it would wait for ever.

    `wanted`: what wants it, as the start of a sentence. Raises InputError: there is no such claim.
    """
    try:
        kube.get(CLAIM, claim)
    except NotFound:
        raise InputError(
            f"{wanted}, but namespace {kube.namespace!r} has no PersistentVolumeClaim {claim!r}. "
            f"{advice}"
        ) from None
    except CannotObserve:
        raise
    except ApiError as error:
        log(f"could not check the claim {claim!r}: {error.short}")
