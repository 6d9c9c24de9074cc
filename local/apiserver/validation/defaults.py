"""The defaults of native kinds; those of pods are in `pods`."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Cause, Object
from kfp_pytorch.local.apiserver.validation import pods
from kfp_pytorch.local.apiserver.validation.fields import invalid_value, required


def _fill_namespace(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    # A terminating namespace is deleted when it has no finalizer.
    if not objects.is_terminating(obj):
        spec.setdefault("finalizers", ["kubernetes"])
    obj.setdefault("status", {}).setdefault("phase", "Active")


def _fill_secret(obj: Object) -> None:
    obj.setdefault("type", "Opaque")
    for key, value in (obj.pop("stringData", None) or {}).items():
        obj.setdefault("data", {})[key] = b64encode(value.encode()).decode()


def _fill_claim(obj: Object) -> None:
    obj.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
    obj.setdefault("status", {}).setdefault("phase", "Pending")


def _fill_service(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    for port in spec.get("ports") or []:
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))
    obj.setdefault("status", {}).setdefault("loadBalancer", {})


def _fill_deployment(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    strategy = spec.setdefault("strategy", {"type": "RollingUpdate"})
    if strategy.get("type") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    pods.fill_spec(spec.setdefault("template", {}).setdefault("spec", {}))
    obj.setdefault("status", {})


FILLERS: dict[str, Callable[[Object], None]] = {
    "Namespace": _fill_namespace,
    "Secret": _fill_secret,
    "PersistentVolumeClaim": _fill_claim,
    "Service": _fill_service,
    "Deployment": _fill_deployment,
    "Pod": pods.fill_pod,
}


def check_deployment(spec: Object) -> Iterator[Cause]:
    """What is wrong with a Deployment's spec."""
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    selector = (spec.get("selector") or {}).get("matchLabels") or {}
    if not spec.get("selector"):
        yield required("spec.selector")
    elif not selector.items() <= labels.items():
        shown = "spec.template.metadata.labels"
        yield invalid_value(shown, labels, "`selector` does not match template `labels`")
    if spec["replicas"] < 0:
        yield invalid_value("spec.replicas", spec["replicas"], "must be greater than or equal to 0")
    yield from pods.check_spec(spec["template"]["spec"], "spec.template.spec")
