"""The kinds of PATCH: merge (RFC 7386), JSON (RFC 6902) and strategic merge."""

from __future__ import annotations

from typing import Any

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import ApiError, Object, bad_request, invalid
from kfp_pytorch.local.apiserver.registry import Resource
from kfp_pytorch.local.apiserver.validation.fields import invalid_value

JSON = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

# The lists that a strategic merge patch merges, and the key of their entries.
_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "conditions": "type",
    "ownerReferences": "uid",
    "secrets": "name",
    "taints": "key",
    "addresses": "type",
    "topologySpreadConstraints": "topologyKey",
}
_SET_LISTS = {"finalizers"}


def accepted(resource: Resource) -> list[str]:
    """The content types that a PATCH of this type may have."""
    return [JSON, MERGE, APPLY] if resource.custom else [JSON, MERGE, STRATEGIC, APPLY]


def unknown_format(known: list[str]) -> ApiError:
    """415: the body is of a type that cannot be read."""
    start = "the body of the request was in an unknown format - accepted media types include"
    return ApiError(415, "UnsupportedMediaType", f"{start}: {', '.join(known)}")


def patched(resource: Resource, obj: Object, content_type: str, patch: Any, text: str) -> Object:
    """A copy of an object with a patch applied. Raises ApiError: 422 when it cannot be applied."""
    if content_type == JSON:
        result: Object = json_patched(obj, patch)
        return result
    if not isinstance(patch, dict):
        why = (
            "couldn't get version/kind; json parse error: json: cannot unmarshal array into Go "
            'value of type struct { APIVersion string "json:\\"apiVersion,omitempty\\""; '
            'Kind string "json:\\"kind,omitempty\\"" }'
        )
        raise invalid("", "", "", [invalid_value("patch", text, why)])
    strategic = content_type == STRATEGIC or (content_type == APPLY and not resource.custom)
    merged: Object = (strategic_merged if strategic else merged_patch)(obj, patch)
    return merged


def merged_patch(value: Any, patch: Any) -> Any:
    """A JSON value with a merge patch applied (RFC 7386)."""
    if not isinstance(patch, dict):
        return objects.copy(patch)
    result = dict(value) if isinstance(value, dict) else {}
    for key, item in patch.items():
        if item is None:
            result.pop(key, None)
        else:
            result[key] = merged_patch(result.get(key), item)
    return result


def strategic_merged(value: Any, patch: Any) -> Any:
    """A JSON value with a strategic merge patch applied: some lists are merged by a key."""
    if not isinstance(patch, dict):
        return objects.copy(patch)
    if patch.get("$patch") == "replace":
        return objects.copy({key: item for key, item in patch.items() if key != "$patch"})
    result = dict(value) if isinstance(value, dict) else {}
    for key, item in patch.items():
        if key.startswith("$") and key != "$patch" and not isinstance(item, list):
            raise bad_request(f"the directive {key} takes a list, not {item!r}")
        if key == "$retainKeys":
            result = {name: kept for name, kept in result.items() if name in item}
        elif key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            held = result.get(name)
            result[name] = [e for e in held if e not in item] if isinstance(held, list) else []
        elif key.startswith("$"):
            continue
        elif item is None:
            result.pop(key, None)
        else:
            result[key] = _strategic_field(key, result.get(key), item)
    return result


def _strategic_field(key: str, value: Any, item: Any) -> Any:
    if isinstance(item, list) and key in _SET_LISTS:
        return [*(value or []), *(entry for entry in item if entry not in (value or []))]
    merge_key = _MERGE_KEYS.get(key)
    if key == "ports" and isinstance(item, list):
        pods = any(isinstance(port, dict) and "containerPort" in port for port in item)
        merge_key = "containerPort" if pods else "port"
    if isinstance(item, list) and merge_key:
        return _merged_list(value or [], item, merge_key)
    return strategic_merged(value, item)


def _merged_list(entries: list[Any], patch: list[Any], key: str) -> list[Any]:
    for entry in patch:
        if not isinstance(entry, dict):
            raise bad_request(f"expected a map in a list that is merged by {key}, found {entry!r}")
    if any(entry.get("$patch") == "replace" for entry in patch):
        return [entry for entry in patch if entry.get("$patch") != "replace"]
    result = list(entries)
    for entry in patch:
        if key not in entry:
            raise bad_request(f"map: {entry} does not contain declared merge key: {key}")
        at = next((i for i, old in enumerate(result) if old.get(key) == entry[key]), None)
        if entry.get("$patch") == "delete":
            result = [old for old in result if old.get(key) != entry[key]]
        elif at is None:
            result.append(strategic_merged({}, entry))
        else:
            result[at] = strategic_merged(result[at], entry)
    return result


def json_patched(obj: Object, patch: Any) -> Any:
    """An object with a JSON patch applied (RFC 6902). Raises ApiError: 422."""
    # Imported late: few requests are JSON patches.
    import jsonpatch

    try:
        return jsonpatch.apply_patch(obj, patch)
    except (
        jsonpatch.JsonPatchException,
        jsonpatch.JsonPointerException,
        *(AttributeError, LookupError, TypeError, ValueError),
    ):
        message = "the server rejected our request due to an error in our request"
        raise ApiError(422, "Invalid", message) from None
