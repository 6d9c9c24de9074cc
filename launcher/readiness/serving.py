"""The check of what serves the model."""

from __future__ import annotations

from collections.abc import Iterator

from kfp_pytorch.launcher.constants import CLUSTER_SERVING_RUNTIME, MODEL_FORMAT, SERVING_RUNTIME
from kfp_pytorch.launcher.kubernetes import objects
from kfp_pytorch.launcher.kubernetes.client import Objects
from kfp_pytorch.launcher.kubernetes.objects import Object, dig, each
from kfp_pytorch.launcher.readiness.findings import Finding, error, ok
from kfp_pytorch.launcher.readiness.needs import Needs
from kfp_pytorch.launcher.readiness.survey import Survey, Unreadable

_MANIFEST = "manifests/serving-runtime.yaml"


def runtimes(survey: Survey, needs: Needs) -> Iterator[Finding]:
    """A ServingRuntime for the model is there."""
    if "kserve_deploy" not in needs.components or not survey.serves(SERVING_RUNTIME):
        return
    found, unread = _there(survey)
    wanted = f"named {needs.runtime}" if needs.runtime else f"for the format {MODEL_FORMAT}"
    for runtime in found:
        by_name = objects.name(runtime) == needs.runtime
        if not dig(runtime, "spec", "disabled") and (
            by_name if needs.runtime else _selects(runtime)
        ):
            name = f"{runtime.get('kind')} {objects.name(runtime)}"
            yield ok("serving runtime", f"{name} is there, {wanted}.")
            return
    if unread:
        raise unread
    mend = f"kubectl apply -n {survey.namespace} -f {_MANIFEST}"
    if needs.runtime:
        mend = "kubectl get servingruntimes,clusterservingruntimes lists those that are there."
    yield error("serving runtime", f"{survey.namespace} has none {wanted}.", mend)


def _there(survey: Survey) -> tuple[Objects, Unreadable | None]:
    found: Objects = []
    unread = None
    for kind in (SERVING_RUNTIME, CLUSTER_SERVING_RUNTIME):
        try:
            found += survey.list(kind)
        except Unreadable as reason:
            unread = unread or reason
    return found, unread


def _selects(runtime: Object) -> bool:
    formats = each(runtime, "spec", "supportedModelFormats")
    return any(item.get("name") == MODEL_FORMAT and item.get("autoSelect") for item in formats)
