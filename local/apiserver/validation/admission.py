"""Admission of an object to the store: pruning, defaults, checks."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import datetime

from kfp_pytorch.launcher.constants import POD, Kind
from kfp_pytorch.local.apiserver import errors, objects
from kfp_pytorch.local.apiserver.errors import ApiError, Cause, Object
from kfp_pytorch.local.apiserver.registry import Resource
from kfp_pytorch.local.apiserver.validation import fields, models, native, schemas

# Only the server writes these.
_SERVER_METADATA = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
)
_METADATA = "V1ObjectMeta"
_OMITTED_EMPTY = ("labels", "annotations", "finalizers", "ownerReferences")
_DEFAULT_GRACE_S = 30


def new_object(resource: Resource, obj: Object, time: datetime) -> Object:
    """A copy of the object as a creation would store it, not yet checked. Raises ApiError: 400."""
    made = _readable(resource, obj)
    meta = made["metadata"]
    for field in (*_SERVER_METADATA, "resourceVersion", "managedFields"):
        meta.pop(field, None)
    if meta.get("generateName") and not meta.get("name"):
        meta["name"] = objects.generated_name(meta["generateName"])
    meta["uid"] = str(uuid.uuid4())
    meta["creationTimestamp"] = objects.timestamp(time)
    if not resource.namespaced:
        meta.pop("namespace", None)
    if resource.generation:
        meta["generation"] = 1
    if resource.status:
        made.pop("status", None)
    return made if resource.custom else native.defaulted(resource, made)


def check_new(resource: Resource, obj: Object) -> None:
    """Refuses a new object that is not valid. Raises ApiError: 422 with every cause."""
    _refuse(resource, obj, _causes(resource, obj))


def changed_object(resource: Resource, old: Object, sent: Object, subresource: str) -> Object:
    """The object as an update would store it. Raises ApiError: 400, 409 Conflict or 422."""
    new = _readable(resource, sent)
    _check_versions(resource.kind, old, new)
    if subresource == "status":
        new = _with_status(old, new)
    else:
        _keep_server_fields(resource, old, new)
    if not resource.custom:
        new = native.defaulted(resource, new)
    causes = [*_causes(resource, new), *_forbidden_changes(resource, old, new)]
    _refuse(resource, new, causes)
    if (
        resource.generation
        and subresource != "status"
        and _spec(resource, old) != _spec(resource, new)
    ):
        new["metadata"]["generation"] = objects.metadata(old).get("generation", 0) + 1
    return new


def unknown_fields(resource: Resource, obj: Object) -> list[str]:
    """The paths of the fields of an object that its type does not have."""
    metadata = obj.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    others = [f"metadata.{key}" for key in metadata if key not in models.fields(_METADATA)]
    return [*others, *_prune(resource, obj)[1]]


def pod_grace(pod: Object, asked: int | None) -> int:
    """The seconds that a deleted pod has to stop: 0 if it is not scheduled or has ended."""
    if asked == 0:
        return 0
    spec = pod.get("spec") or {}
    phase = (pod.get("status") or {}).get("phase")
    if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0
    if asked is not None:
        return asked
    return int(spec.get("terminationGracePeriodSeconds", _DEFAULT_GRACE_S))


def terminating(kind: Kind, name: str, namespace: str) -> ApiError:
    """403: nothing is created in a terminating namespace."""
    why = f"unable to create new content in namespace {namespace} because it is being terminated"
    message = f"namespace {namespace} is being terminated"
    cause = Cause("NamespaceTerminating", "metadata.namespace", message)
    return errors.forbidden(kind, name, why, [cause])


def _readable(resource: Resource, sent: Object) -> Object:
    if not isinstance(sent, dict):
        raise fields.unreadable(resource, sent, "Object", resource.kind.kind)
    obj = objects.copy(sent)
    kind = resource.kind
    version = obj.setdefault("apiVersion", kind.api_version)
    obj.setdefault("kind", kind.kind)
    if version != kind.api_version:
        raise errors.bad_request(
            f"the API version in the data ({version}) does not match the expected API version "
            f"({kind.api_version})"
        )
    fields.check_types(resource, obj)
    obj["metadata"] = {
        key: value
        for key, value in objects.compact(obj["metadata"]).items()
        if (value or key not in _OMITTED_EMPTY) and key in models.fields(_METADATA)
    }
    return _prune(resource, obj)[0]


def _prune(resource: Resource, obj: Object) -> tuple[Object, list[str]]:
    if not resource.custom:
        return native.prune(resource, obj)
    return schemas.prune(resource, obj) if resource.schema else (obj, [])


def _causes(resource: Resource, obj: Object) -> Iterable[Cause]:
    kind = resource.kind
    if obj.get("kind") != kind.kind:
        yield fields.invalid_value("kind", obj.get("kind"), f"must be {kind.kind}")
        return
    yield from fields.check_metadata(resource, obj)
    if resource.custom:
        yield from schemas.check(resource, obj)
    else:
        yield from native.check(resource, obj)


def _refuse(resource: Resource, obj: Object, causes: Iterable[Cause]) -> None:
    found = list(causes)
    if found:
        kind = str(obj.get("kind") or resource.kind.kind)
        raise errors.invalid(kind, resource.kind.group, objects.name(obj), found)


def _check_versions(kind: Kind, old: Object, new: Object) -> None:
    meta, stored = objects.metadata(new), objects.metadata(old)
    if meta.get("uid") not in (None, "", stored["uid"]):
        why = (
            f"Precondition failed: UID in precondition: {meta['uid']}, "
            f"UID in object meta: {stored['uid']}"
        )
        raise errors.conflict(kind, stored["name"], why)
    if meta.get("resourceVersion") not in (None, "", stored["resourceVersion"]):
        raise errors.conflict(kind, stored["name"])


def _with_status(old: Object, new: Object) -> Object:
    kept = objects.copy({key: old[key] for key in old if key != "status"})
    if new.get("status") is not None:
        kept["status"] = new["status"]
    return kept


def _keep_server_fields(resource: Resource, old: Object, new: Object) -> None:
    meta, stored = new["metadata"], objects.metadata(old)
    for field in (*_SERVER_METADATA, "resourceVersion"):
        meta.pop(field, None)
        if field in stored:
            meta[field] = stored[field]
    if resource.status:
        new.pop("status", None)
        if "status" in old:
            new["status"] = objects.copy(old["status"])


def _spec(resource: Resource, obj: Object) -> Object:
    """What the generation counts: all but metadata, a subresource and a pod's binding."""
    left_out = ("metadata", "status") if resource.status else ("metadata",)
    counted = {key: value for key, value in obj.items() if key not in left_out}
    if resource.kind == POD:
        spec = obj.get("spec") or {}
        counted["spec"] = {key: value for key, value in spec.items() if key != "nodeName"}
    return counted


def _forbidden_changes(resource: Resource, old: Object, new: Object) -> Iterable[Cause]:
    if objects.is_terminating(old):
        known = objects.finalizers(old)
        added = [item for item in objects.finalizers(new) if item not in known]
        if added:
            shown = ", ".join(f'"{item}"' for item in added)
            why = (
                "no new finalizers can be added if the object is being deleted, found new "
                f"finalizers []string{{{shown}}}"
            )
            # A real server reports it twice: once for the metadata, once for the resource.
            yield from [fields.forbidden("metadata.finalizers", why)] * 2
    if resource.custom:
        yield from schemas.forbidden_changes(resource, old, new)
    elif resource.kind == POD:
        yield from native.forbidden_pod_changes(old, new)
