"""Answers to POST, PUT, PATCH and DELETE."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_pytorch.launcher.constants import POD
from kfp_pytorch.local.apiserver import errors, objects
from kfp_pytorch.local.apiserver.errors import ApiError, Cause, Object
from kfp_pytorch.local.apiserver.http import reviews
from kfp_pytorch.local.apiserver.http.paths import Target
from kfp_pytorch.local.apiserver.store import patches
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.apiserver.store.selectors import selector
from kfp_pytorch.local.apiserver.validation import admission
from kfp_pytorch.local.apiserver.validation.fields import required, unsupported

_PROPAGATIONS = ["Background", "Foreground", "Orphan"]
# The native kinds whose deletion answers with the object, as their storage says.
_RETURN_DELETED = {"Pod", "Service", "PersistentVolumeClaim", "ServiceAccount"}
_YAML = ("application/yaml", patches.APPLY)
_PROTOBUF = "application/vnd.kubernetes.protobuf"
_READABLE = ("", "application/json", *_YAML, patches.JSON, patches.MERGE, patches.STRATEGIC)


@dataclass(frozen=True)
class Sent:
    """The body of a request, and how it is to be read."""

    body: bytes  # the body
    content_type: str  # its media type, without parameters
    query: Mapping[str, str]  # the query

    @property
    def dry_run(self) -> bool:
        """Whether nothing is stored."""
        return self.query.get("dryRun") == "All"


@dataclass(frozen=True)
class Done:
    """An answer."""

    object: Object  # the object, or a Status
    status: int = 200  # the HTTP status
    warnings: list[str] = field(default_factory=list)  # the warnings for the client
    is_status: bool = False  # whether the object is not of the request's type


def handle(api: Api, target: Target, method: str, sent: Sent) -> Done:
    """Handles a request that writes. Raises ApiError: when it is refused."""
    in_all_namespaces = target.resource.namespaced and target.namespace is None
    if method == "POST" and not target.name and not in_all_namespaces:
        return _create(api, target, sent)
    if method == "POST" and target.subresource == "binding" and target.resource.kind == POD:
        return _bind(api, target, sent)
    if method == "DELETE" and not target.subresource:
        return _delete(api, target, sent) if target.name else _delete_all(api, target, sent)
    if target.name and target.subresource in ("", "status", "finalize"):
        if method == "PUT":
            return _update(api, target, sent)
        if method == "PATCH":
            return _patch(api, target, sent)
    message = "the server does not allow this method on the requested resource"
    raise ApiError(405, "MethodNotAllowed", message)


def review(api: Api, group: str, plural: str, sent: Sent, authorization: str) -> Object:
    """The answer to a review: of the client, or of what an account may do."""
    kind, answer = reviews.REVIEWS[group, plural]
    asked = _decoded(sent, kind)
    if not isinstance(asked, dict):
        raise errors.bad_request(f"the object provided is unrecognized (must be of type {kind})")
    return answer(api, asked, reviews.user_of(authorization))


def _decoded(sent: Sent, kind: str) -> Any:
    if sent.content_type not in _READABLE:
        known = ["application/json", "application/yaml"]
        if sent.content_type == _PROTOBUF:
            known[-1] += "; this server takes no protobuf: use `kubectl apply -f FILE`"
        raise patches.unknown_format(known)
    text = sent.body.decode("utf-8", errors="replace")
    try:
        return (
            _from_yaml(text)
            if sent.content_type in _YAML
            else json.loads(text, parse_constant=_refuse_constant)
        )
    except ValueError as error:
        why = str(error) if text else "unexpected end of JSON input"
        raise errors.bad_request(
            f"the object provided is unrecognized (must be of type {kind}): couldn't get "
            f"version/kind; json parse error: {why} ({text or '<empty>'})"
        ) from None


def _refuse_constant(name: str) -> None:
    """Refuses NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError(f"invalid character '{name[0]}' looking for beginning of value")


def _from_yaml(text: str) -> Any:
    # Imported late: few requests have YAML.
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _object(target: Target, sent: Sent) -> Object:
    kind = target.resource.kind.kind
    obj = _decoded(sent, kind)
    if not isinstance(obj, dict):
        raise errors.bad_request(
            f"the object provided is unrecognized (must be of type {kind}): couldn't get "
            f"version/kind; json parse error: not a JSON object"
        )
    if not target.resource.custom:
        # Native kinds need not state their kind.
        obj.setdefault("kind", kind)
        obj.setdefault("apiVersion", target.resource.kind.api_version)
    for word in ("kind", "apiVersion"):
        if not obj.get(word):
            shown = json.dumps(obj, separators=(",", ":"))
            raise errors.bad_request(
                f"Object '{word[0].upper()}{word[1:]}' is missing in '{shown}'"
            )
    _place(target, obj)
    return obj


def _place(target: Target, obj: Object) -> None:
    meta = obj.get("metadata")
    if not isinstance(meta, dict) or not target.resource.namespaced:
        meta = obj["metadata"] = meta if isinstance(meta, dict) or meta else {}
        if not target.resource.namespaced or not isinstance(meta, dict):
            return
    namespace = meta.setdefault("namespace", target.namespace)
    if namespace not in (target.namespace, "", None):
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    meta["namespace"] = target.namespace


def _check_name(target: Target, obj: Object) -> None:
    found = objects.name(obj)
    if found != target.name:
        raise errors.bad_request(
            f"the name of the object ({found}) does not match the name on the URL ({target.name})"
        )


def _unknown_fields(target: Target, sent: Sent, obj: Object) -> list[str]:
    """Warnings of fields that the type does not have, or an error where they are not allowed."""
    how = sent.query.get("fieldValidation", "Warn")
    if how == "Ignore":
        return []
    found = [f'unknown field "{path}"' for path in admission.unknown_fields(target.resource, obj)]
    if found and how == "Strict":
        kind = target.resource.kind
        raise errors.bad_request(
            f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: strict '
            f"decoding error: {', '.join(found)}"
        )
    return found


def _create(api: Api, target: Target, sent: Sent) -> Done:
    obj = _object(target, sent)
    warnings = _unknown_fields(target, sent, obj)
    made = api.create(target.resource.kind, obj, dry_run=sent.dry_run)
    return Done(made, 201, warnings)


def _bind(api: Api, target: Target, sent: Sent) -> Done:
    node = (_decoded(sent, "Binding").get("target") or {}).get("name", "")

    def bind(pod: Object) -> None:
        pod["spec"]["nodeName"] = node

    api.mutate(*target.key, bind)
    return Done(_success(target, None), 201, is_status=True)


def _subresource(target: Target) -> str:
    if target.subresource == "status" and not target.resource.status:
        raise errors.no_such_resource()
    return "status" if target.subresource == "status" else ""


def _update(api: Api, target: Target, sent: Sent) -> Done:
    subresource = _subresource(target)
    obj = _object(target, sent)
    _check_name(target, obj)
    api.existing(*target.key)
    if target.resource.custom and not objects.metadata(obj).get("resourceVersion"):
        why = "Invalid value: 0x0: must be specified for an update"
        cause = Cause("FieldValueInvalid", "metadata.resourceVersion", why)
        kind = target.resource.kind
        raise errors.invalid(kind.kind, kind.group, target.name, [cause])
    warnings = _unknown_fields(target, sent, obj)
    done = api.update(target.resource.kind, obj, subresource, dry_run=sent.dry_run)
    return Done(done, 200, warnings)


def _patch(api: Api, target: Target, sent: Sent) -> Done:
    subresource, kind = _subresource(target), target.resource.kind
    if sent.content_type not in patches.accepted(target.resource):
        raise patches.unknown_format(patches.accepted(target.resource))
    patch = _decoded(sent, kind.kind)
    if sent.content_type == patches.APPLY:
        if not sent.query.get("fieldManager"):
            cause = required("fieldManager", "is required for apply patch")
            raise errors.invalid("PatchOptions", "meta.k8s.io", "", [cause])
        if api.find(*target.key) is None:
            return _create(api, target, sent)
    old = api.get(*target.key)
    text = sent.body.decode("utf-8", errors="replace")
    new = patches.patched(target.resource, old, sent.content_type, patch, text)
    if not isinstance(new, dict):
        raise errors.bad_request(f"the patch leaves no object but {json.dumps(new)}")
    _check_name(target, new)
    _place(target, new)
    warnings = _unknown_fields(target, sent, new)
    done = api.update(kind, new, subresource, dry_run=sent.dry_run)
    return Done(done, 200, warnings)


def _delete_options(sent: Sent) -> dict[str, Any]:
    body: Object = (_decoded(sent, "DeleteOptions") if sent.body.strip() else None) or {}
    preconditions = body.get("preconditions") or {} if isinstance(body, dict) else None
    if not isinstance(preconditions, dict):
        raise errors.bad_request(f"the body is no DeleteOptions: {sent.body[:200]!r}")
    query = sent.query
    propagation = body.get("propagationPolicy") or query.get("propagationPolicy")
    orphans = body.get("orphanDependents", query.get("orphanDependents"))
    if propagation is None and orphans is not None:
        propagation = "Orphan" if orphans in (True, "true") else "Background"
    if propagation not in (None, *_PROPAGATIONS):
        cause = unsupported("propagationPolicy", propagation, [*_PROPAGATIONS, "nil"])
        raise errors.invalid("DeleteOptions", "meta.k8s.io", "", [cause])
    grace = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
    if not re.fullmatch(r"-?\d*", str(grace or "")):
        raise errors.bad_request(f"gracePeriodSeconds: {grace!r} is no number of seconds")
    return {
        "propagation": propagation or "Background",
        "uid": preconditions.get("uid") or "",
        "resource_version": preconditions.get("resourceVersion") or "",
        "grace": None if grace in (None, "") else int(grace),
        "dry_run": sent.dry_run or body.get("dryRun") == ["All"],
    }


def _delete(api: Api, target: Target, sent: Sent) -> Done:
    options = _delete_options(sent)
    last = api.delete(*target.key, **options)
    if api.find(*target.key) is not None and not options["dry_run"]:
        return Done(last)
    if target.resource.kind.kind in _RETURN_DELETED and not target.resource.custom:
        return Done(last)
    return Done(_success(target, last), is_status=True)


def _success(target: Target, obj: Object | None) -> Object:
    details = errors.details_of(target.resource.kind, target.name)
    if obj is not None:
        details["uid"] = objects.metadata(obj)["uid"]
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    }


def _delete_all(api: Api, target: Target, sent: Sent) -> Done:
    options = _delete_options(sent)
    query, resource = sent.query, target.resource
    match = selector(resource, query.get("labelSelector", ""), query.get("fieldSelector", ""))
    deleted = [
        api.delete(resource.kind, objects.namespace(obj), objects.name(obj), **options)
        for obj in api.snapshot(resource.kind, target.namespace)
        if match(obj)
    ]
    whole = {
        "kind": resource.list_kind,
        "apiVersion": resource.kind.api_version,
        "metadata": {"resourceVersion": str(api.revision)},
        "items": deleted,
    }
    return Done(whole, is_status=True)
