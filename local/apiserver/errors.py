"""The errors of the Kubernetes API, with the messages of a real server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from kfp_pytorch.launcher.constants import Kind

Object = dict[str, Any]
"""A Kubernetes object in its JSON form."""


@dataclass(frozen=True)
class Cause:
    """One thing that is wrong with one field."""

    reason: str  # such as `FieldValueInvalid`
    field: str  # the field's path, such as `spec.replicas`
    message: str  # what is wrong, without the field's path


class ApiError(Exception):
    """An answer that is not a success; `details` are those of its Status object."""

    def __init__(self, code: int, reason: str, message: str, details: Object | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}

    def status(self) -> Object:
        """The error as the Status object of an answer."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            **({"details": self.details} if self.details else {}),
            "code": self.code,
        }


def qualified(kind: Kind) -> str:
    """The resource's name with its group, such as `pytorchjobs.kubeflow.org`."""
    return f"{kind.plural}.{kind.group}" if kind.group else kind.plural


def details_of(kind: Kind, name: str) -> Object:
    """The details of a Status about an object."""
    group = {"group": kind.group} if kind.group else {}
    return {"name": name, **group, "kind": kind.plural}


def not_found(kind: Kind, name: str) -> ApiError:
    """404: there is no such object."""
    message = f'{qualified(kind)} "{name}" not found'
    return ApiError(404, "NotFound", message, details_of(kind, name))


def no_such_resource() -> ApiError:
    """404 for a whole resource type, as while a CRD is not registered."""
    message = "the server could not find the requested resource"
    return ApiError(404, "NotFound", message)


def already_exists(kind: Kind, name: str) -> ApiError:
    """409: an object of this name is there."""
    message = f'{qualified(kind)} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, details_of(kind, name))


STALE = (
    "the object has been modified; please apply your changes to the latest version and try again"
)


def conflict(kind: Kind, name: str, why: str = STALE) -> ApiError:
    """409: the write was made from an older state, or a precondition does not hold."""
    message = f'Operation cannot be fulfilled on {qualified(kind)} "{name}": {why}'
    return ApiError(409, "Conflict", message, details_of(kind, name))


def bad_request(message: str) -> ApiError:
    """400: the request cannot be understood."""
    return ApiError(400, "BadRequest", message)


def unauthorized() -> ApiError:
    """401: the request has no credentials that count."""
    return ApiError(401, "Unauthorized", "Unauthorized")


def forbidden(kind: Kind, name: str, why: str, causes: Iterable[Cause] = ()) -> ApiError:
    """403: the request is understood and refused."""
    details = details_of(kind, name)
    found = [asdict(cause) for cause in causes]
    if found:
        details["causes"] = found
    message = f'{qualified(kind)} "{name}" is forbidden: {why}'
    return ApiError(403, "Forbidden", message, details)


def denied(webhook: str, why: str) -> ApiError:
    """403: an admission webhook refuses the object."""
    message = f'admission webhook "{webhook}" denied the request: {why}'
    return ApiError(403, "Forbidden", message)


def expired(message: str) -> ApiError:
    """410: the resourceVersion or continue token is too old."""
    return ApiError(410, "Expired", message)


def invalid(kind: str, group: str, name: str, causes: Iterable[Cause]) -> ApiError:
    """422: fields of the object are wrong. Each message is there once."""
    found = list(causes)
    messages = list(dict.fromkeys(f"{cause.field}: {cause.message}" for cause in found))
    message = messages[0] if len(messages) == 1 else f"[{', '.join(messages)}]"
    subject = f"{kind}.{group}" if group else kind
    details: Object = {"name": name, **({"group": group} if group else {}), "kind": kind}
    details["causes"] = [asdict(cause) for cause in found]
    return ApiError(422, "Invalid", f'{subject} "{name}" is invalid: {message}', details)
