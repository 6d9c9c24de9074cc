"""The errors of an API server, by what to do about them. No I/O.

`Status` objects: https://kubernetes.io/docs/reference/using-api/api-concepts/.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kfp_pytorch.launcher.errors import PermissionMissing, StepError, shortened
from kfp_pytorch.launcher.kubernetes import admission
from kfp_pytorch.launcher.kubernetes.objects import each

RBAC_MANIFEST = "manifests/rbac.yaml"
_RBAC_WORDS = re.compile(r"cannot \S+ resource")
_USER_WORDS = re.compile(r'User "([^"]+)"')
# What a webhook or an admission policy answers, with whatever code; and what is said of an object
# that changed meanwhile.
_DENIED = re.compile(r"denied (?:the )?request")
_STALE = "the object has been modified"
# A server that starts and a new quota answer so until they have read the objects.
_NOT_YET = re.compile(r"not yet ready to handle request|status unknown for quota")


@dataclass(frozen=True)
class Role:
    """A ClusterRole of the manifests."""

    name: str
    applied: str  # the option of `kubectl apply` that makes it


STEPS_ROLE = Role("kfp-pytorch-steps", f"-f {RBAC_MANIFEST}")
SOURCE_ROLE = Role("kfp-pytorch-source", "-k manifests/source")


@dataclass(frozen=True)
class Call:
    """A request to the API server."""

    verb: str  # the verb as RBAC names it: get, list, watch, create, update, patch or delete
    resource: str  # the resource as RBAC names it, such as `pytorchjobs` or `pods/log`
    group: str  # the API group; empty for the core group
    namespace: str  # the namespace
    name: str = ""  # the object's name; empty for a collection
    account: str = ""  # the account, as far as the credentials name it

    def __str__(self) -> str:
        target = f"{self.resource} {self.name!r}" if self.name else self.resource
        group = f" ({self.group})" if self.group else ""
        return f"{self.verb} {target}{group} in namespace {self.namespace!r}"


class ApiError(StepError):
    """The API server did not carry out a request.

    Attributes:
        call: The request.
        status: The HTTP status; 0 where no answer came.
        reason: The `reason` of the server's Status, such as `AlreadyExists`, or empty.
        server_message: The server's own message; of a very long one, both ends.
        retry_after: Seconds that the server asks to wait, or 0.
    """

    def __init__(
        self, call: Call, status: int, reason: str, message: str, retry_after: float = 0.0
    ) -> None:
        self.call = call
        self.status = status
        self.reason = reason
        self.server_message = shortened(message)
        self.retry_after = retry_after
        super().__init__(self._format())

    def _format(self) -> str:
        return (
            f"Could not {self.call}: {self.status} {self.reason or 'error'}: {self.server_message}"
        )


class NotFound(ApiError):
    """The object does not exist: a well-formed NotFound that names it."""

    def _format(self) -> str:
        advice = "\nCreate the namespace, or correct the input that names it."
        lacks = self.call.verb == "create" and "namespace" in self.server_message
        return super()._format() + (advice if lacks else "")


class KindAbsent(ApiError):
    """The server does not know the resource type: its CRD is missing, or not yet registered."""

    def _format(self) -> str:
        kind = f"{self.call.resource}.{self.call.group or 'core'}"
        return (
            f"The cluster has no {kind}: the controller that owns this kind, or its "
            f"CustomResourceDefinition, is not installed ({self.server_message})."
        )


class AlreadyExists(ApiError):
    """An object of that name exists."""


class Conflict(ApiError):
    """The object has changed, or has another uid."""


class Expired(ApiError):
    """410: the resource version or the continue token is too old; read again."""


class Refused(ApiError):
    """Validation, an admission webhook or a quota refused the object: retrying cannot help."""

    def _format(self) -> str:
        said = self.server_message.rstrip(".")
        return (
            f"The cluster refused to {self.call}: {said}.\n{admission.advice(self.server_message)}"
        )


class Forbidden(ApiError, PermissionMissing):
    """403: the account lacks a permission."""

    def _format(self) -> str:
        return _missing_permission(self.call, self.server_message)


def _missing_permission(call: Call, server_message: str) -> str:
    said = _USER_WORDS.search(server_message)
    account = said.group(1) if said else call.account or "this step's service account"
    # Of ConfigMaps the role of every step may but read.
    writes = (call.group, call.resource) == ("", "configmaps") and call.verb != "get"
    role = SOURCE_ROLE if writes else STEPS_ROLE
    return (
        f"Missing permission: {account} may not {call}.\n"
        f"An administrator grants it with {granting(call.namespace, account, role)}.\n"
        f"The server said: {server_message}"
    )


def granting(namespace: str, account: str, role: Role = STEPS_ROLE) -> str:
    """Return the commands that give an account the permissions of the steps, or of another role."""
    # The manifest has a binding of the role's own name.
    name = account.rpartition(":")[2] if " " not in account else "ACCOUNT"
    return (
        f"`kubectl apply -n {namespace} {role.applied}` and `kubectl create rolebinding "
        f"{role.name}-{name} -n {namespace} --clusterrole={role.name} {_subject(account)}`"
    )


def _subject(account: str) -> str:
    """The account as an option of `kubectl create rolebinding`."""
    prefix, _, name = account.rpartition("system:serviceaccount:")
    if name.count(":") == 1 and not prefix:
        return f"--serviceaccount={name}"
    return f"--user={account}" if " " not in account else "--serviceaccount=NAMESPACE:ACCOUNT"


class Transient(ApiError):
    """The same call may succeed later: 429, 5xx, a redirection, no answer, 401 and some 403."""


class Unauthorized(Transient):
    """401 even with credentials that were read again."""

    def _format(self) -> str:
        account = self.call.account or "no account"
        return (
            f"The API server does not accept the credentials ({account}), "
            f"read again from disk each time: could not {self.call}: {self.server_message}\n"
            "Check that the step's service account still exists and its token is mounted; outside "
            "of a cluster, log in again."
        )


class Unconfirmed(Transient):
    """403 that is retried, at least for now: see `permissions`."""

    def _format(self) -> str:
        return _missing_permission(self.call, self.server_message)


class Unreachable(Transient):
    """No whole answer came: refused, reset, timed out or cut off."""

    def _format(self) -> str:
        return f"No answer to {self.call}: {self.server_message}"


class StreamIdle(Unreachable):
    """Nothing came on a stream for so long that it counts as dead."""


def error_from(call: Call, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """Turns an HTTP answer that is not a success into its error.

    `body`: the answer's body; a `Status` object when the API server itself answers. Returns the
    error; its class says what to do.
    """
    answer = _status_object(body)
    reason = str(answer.get("reason") or "")
    message = _message(answer, body)
    cls = _class_for(call, status, reason, message, answer)
    if cls is KindAbsent and not call.group:
        # Every API server has the core kinds: this one is starting, or is a proxy. A log does not
        # exist where its pod does not.
        cls = NotFound if call.resource == "pods/log" else Transient
    return cls(call, status, reason, message, _retry_after(headers, answer))


def error_from_status(call: Call, answer: Mapping[str, Any]) -> ApiError:
    """Turns the `Status` object of a watch's ERROR event into its error.

    Returns the error; `Expired` for 410 in each of its forms; never a refusal of access.
    """
    code = answer.get("code")
    status = code if isinstance(code, int) else 500
    reason, message = str(answer.get("reason") or ""), str(answer.get("message") or "no words")
    if reason in ("Expired", "Gone"):
        return Expired(call, 410, reason, message)
    cls = _class_for(call, status, reason, message, answer)
    if issubclass(cls, Unauthorized | Forbidden):
        # Not the answer to a request: the next read shows whether access is refused.
        cls = Transient
    return cls(call, status, reason, message)


def _status_object(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) and answer.get("kind") == "Status" else {}


def _message(answer: Mapping[str, Any], body: bytes) -> str:
    """The server's message; a Status without one may still have causes or a reason."""
    causes = (f"{c.get('field')}: {c.get('message')}" for c in each(answer, "details", "causes"))
    text = answer.get("message") or "; ".join(causes) or answer.get("reason")
    return str(text or body[:500].decode("utf-8", "replace").strip() or "no words")


def _class_for(
    call: Call, status: int, reason: str, message: str, answer: Mapping[str, Any]
) -> type[ApiError]:
    if 400 <= status < 500 and status not in (408, 429) and _DENIED.search(message):
        return Conflict if _STALE in message else Refused
    if status == 404:
        named = _missing(reason, answer)
        if call.name and named not in ("", call.name):
            # A webhook's Service or the like was not found, not our object.
            return Transient
        return NotFound if named else KindAbsent
    if status == 409:
        return AlreadyExists if reason == "AlreadyExists" else Conflict
    if status == 403 and _NOT_YET.search(message):
        return Transient
    if status == 403:
        # Quotas and admission webhooks answer 403 as well, which no role changes.
        return Forbidden if _RBAC_WORDS.search(message) or not answer else Refused
    # The API server does not redirect; a proxy does.
    if status == 429 or status >= 500 or status == 408 or 300 <= status < 400:
        return Transient
    return {401: Unauthorized, 410: Expired, 400: Refused, 413: Refused, 422: Refused}.get(
        status, ApiError
    )


def _missing(reason: str, answer: Mapping[str, Any]) -> str:
    """The name of the object that a 404 is about; empty where it is about the resource type."""
    details = answer.get("details")
    named = reason == "NotFound" and isinstance(details, dict) and details.get("name")
    return str(named or "")


def _retry_after(headers: Mapping[str, str], answer: Mapping[str, Any]) -> float:
    details = answer.get("details")
    asked = headers.get("Retry-After") or (
        details.get("retryAfterSeconds") if isinstance(details, dict) else None
    )
    try:
        return max(0.0, float(asked or 0))
    except (TypeError, ValueError):
        return 0.0
