"""KServe's admission webhooks for InferenceServices.

Source: kserve v0.20, `pkg/apis/serving/v1beta1/inference_service_{defaults,validation}`.
"""

from __future__ import annotations

import re

from kfp_pytorch.local.apiserver import errors, objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.controllers.kserve import canary
from kfp_pytorch.local.controllers.kserve.predictor import FORMAT_ANNOTATION, MODE_ANNOTATION
from kfp_pytorch.local.controllers.kserve.status import MODE

WEBHOOK = "inferenceservice.kserve-webhook-server.validator"
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NEW_NAMES = {"RawDeployment": MODE, "Serverless": "Knative"}


def fill_in(service: Object) -> None:
    """Add the annotations of a new InferenceService: its model's format, its deployment mode."""
    annotations = objects.metadata(service).get("annotations") or {}
    model = (service["spec"].get("predictor") or {}).get("model") or {}
    if model.get("modelFormat"):
        annotations[FORMAT_ANNOTATION] = model["modelFormat"]["name"]
    annotations.setdefault(MODE_ANNOTATION, MODE)
    service["metadata"]["annotations"] = annotations


def check(service: Object) -> None:
    """Refuse what KServe's webhook would refuse. Raises ApiError: 403, with what is wrong."""
    name, predictor = objects.name(service), service["spec"].get("predictor") or {}
    if not _NAME.fullmatch(name):
        why = f'the InferenceService "{name}" is invalid: a InferenceService name must consist of'
        raise errors.denied(
            WEBHOOK,
            f"{why} lower case alphanumeric characters or '-', and must start with alphabetical "
            f'character. (e.g. "my-name" or "abc-123", regex used for validation is '
            f"'{_NAME.pattern}')",
        )
    if (predictor.get("model") or {}).get("name"):
        raise errors.denied(WEBHOOK, "the 'name' field is not allowed in standard predictor")
    _check_mode(service)
    annotations = objects.metadata(service).get("annotations") or {}
    refusal = canary.refusal(service, annotations.get(MODE_ANNOTATION, ""))
    if refusal:
        raise errors.denied(WEBHOOK, refusal)


def mode_of(service: Object) -> str:
    """The mode that an InferenceService is to run in: `Standard` or `Knative`."""
    annotations = objects.metadata(service).get("annotations") or {}
    given: str = annotations.get(MODE_ANNOTATION, MODE)
    return _NEW_NAMES.get(given, given)


def refuse_knative(service: Object) -> None:
    """Refuse an update of a service that needs Knative, where there is none. Raises ApiError."""
    if mode_of(service) == "Knative" and objects.metadata(service).get("resourceVersion"):
        # It is accepted, and then every update of it is refused, KServe's own included.
        raise errors.denied(
            WEBHOOK, "It is not possible to use Knative: Knative Serving is not available"
        )


def _check_mode(service: Object) -> None:
    given = (objects.metadata(service).get("annotations") or {}).get(MODE_ANNOTATION, "")
    current = (service.get("status") or {}).get("deploymentMode")
    if current and given and _NEW_NAMES.get(given, given) != current:
        why = f"deploymentMode cannot be changed from '{current}' to '{given}'"
        raise errors.denied(WEBHOOK, f"update rejected: {why}")
