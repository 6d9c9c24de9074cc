"""Reviews of who a client is and of what an account may do, by the roles and bindings stored.

Nothing else is authorized by them: whoever has the server's token may do everything. Source:
kubernetes v1.32 `plugin/pkg/auth/authorizer/rbac`, `pkg/registry/rbac/validation` and
`pkg/apis/authorization/validation`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Cause, Object, bad_request, invalid
from kfp_pytorch.local.apiserver.registry import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    ROLE,
    ROLE_BINDING,
)
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.apiserver.validation.fields import invalid_value

_ACCOUNTS = "system:serviceaccounts"
_MASTERS = "system:masters"
_ALLOWED_TO_MASTERS = (
    f'RBAC: allowed by ClusterRoleBinding "cluster-admin" of ClusterRole "cluster-admin" to Group '
    f'"{_MASTERS}"'
)
_BOTH = "cannot be specified in combination with resourceAttributes"
_NEITHER = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
_NOBODY = "at least one of user or group must be specified"
# What these roles of every cluster let each account do.
_EVERYBODY = (
    {"apiGroups": ["authorization.k8s.io"], "resources": ["selfsubjectaccessreviews"]},
    {"apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"]},
)


@dataclass(frozen=True)
class User:
    """Who asks, or is asked about."""

    name: str
    groups: tuple[str, ...] = ()


def user_of(authorization: str) -> User:
    """Who a client is, by its `Authorization` header.

    A token that is a JWT names its service account, as on any cluster; nobody signs it here.
    Everybody else is the administrator.
    """
    try:
        payload = authorization.removeprefix("Bearer ").split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        name = str(claims["sub"])
    except (IndexError, KeyError, ValueError, TypeError):
        return User("local", (_MASTERS,))
    namespace = name.split(":")[2] if name.startswith("system:serviceaccount:") else ""
    accounts = (_ACCOUNTS, f"{_ACCOUNTS}:{namespace}") if namespace else ()
    return User(name, (*accounts, "system:authenticated"))


def identity(_api: Api, asked: Object, user: User) -> Object:
    """The answer to a SelfSubjectReview."""
    return _answer(asked, {"userInfo": {"username": user.name, "groups": list(user.groups)}})


def own_access(api: Api, asked: Object, user: User) -> Object:
    """The answer to a SelfSubjectAccessReview. Raises ApiError: 422, it asks for nothing."""
    _check("SelfSubjectAccessReview", asked, _attribute_causes(_spec(asked)))
    return _answer(asked, _decision(api, user, _spec(asked)))


def access(api: Api, asked: Object, _user: User) -> Object:
    """The answer to a SubjectAccessReview. Raises ApiError: 422, it asks for nothing, or nobody."""
    spec = _spec(asked)
    causes = _attribute_causes(spec)
    if not spec.get("user") and not spec.get("groups"):
        causes.append(invalid_value("spec.user", spec.get("user") or "", _NOBODY))
    _check("SubjectAccessReview", asked, causes)
    subject = User(str(spec.get("user") or ""), tuple(spec.get("groups") or ()))
    return _answer(asked, _decision(api, subject, spec))


Review = Callable[[Api, Object, User], Object]
# By group and plural: the kind, and what answers.
REVIEWS: dict[tuple[str, str], tuple[str, Review]] = {
    ("authentication.k8s.io", "selfsubjectreviews"): ("SelfSubjectReview", identity),
    ("authorization.k8s.io", "selfsubjectaccessreviews"): ("SelfSubjectAccessReview", own_access),
    ("authorization.k8s.io", "subjectaccessreviews"): ("SubjectAccessReview", access),
}


def _spec(asked: Object) -> Object:
    spec = asked.get("spec") or {}
    if not isinstance(spec, dict):
        raise bad_request(f"spec is {spec!r}, not an object")
    return spec


def _answer(asked: Object, status: Object) -> Object:
    return {**asked, "metadata": {}, "spec": _spec(asked), "status": status}


def _attribute_causes(spec: Object) -> list[Cause]:
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if resource is not None and path is not None:
        return [invalid_value("spec.nonResourceAttributes", json.dumps(path), _BOTH)]
    if resource is None and path is None:
        return [
            Cause(
                "FieldValueInvalid", "spec.resourceAttributes", f"Invalid value: null: {_NEITHER}"
            )
        ]
    return []


def _check(kind: str, asked: Object, causes: list[Cause]) -> None:
    if any(asked.get("metadata") or {}):
        causes.append(Cause("FieldValueInvalid", "metadata", "Invalid value: must be empty"))
    if causes:
        raise invalid(kind, "authorization.k8s.io", "", causes)


def _decision(api: Api, user: User, spec: Object) -> Object:
    """The status of a review: an authorizer of RBAC has no opinion where no rule allows."""
    if _MASTERS in user.groups:
        return {"allowed": True, "reason": _ALLOWED_TO_MASTERS}
    wanted = spec.get("resourceAttributes")
    if wanted is None:
        return {"allowed": False}
    errors = []
    for source, rules in _rules(api, user, str(wanted.get("namespace") or "")):
        if isinstance(rules, str):
            errors.append(rules)
        elif any(_allows(rule, wanted) for rule in rules):
            return {"allowed": True, "reason": f"RBAC: allowed by {source}"}
    unique = list(dict.fromkeys(errors))
    words = unique[0] if len(unique) == 1 else f"[{', '.join(unique)}]"
    return {"allowed": False, **({"reason": f"RBAC: {words}"} if unique else {})}


def _rules(api: Api, user: User, namespace: str) -> Iterator[tuple[str, list[Object] | str]]:
    """Each binding of a user, in words, with its role's rules, or why there are none."""
    if "system:authenticated" in user.groups:
        source = 'ClusterRoleBinding "system:basic-user" of ClusterRole "system:basic-user" to '
        every = [{**rule, "verbs": ["create"]} for rule in _EVERYBODY]
        yield f'{source}Group "system:authenticated"', every
    for binding in api.snapshot(CLUSTER_ROLE_BINDING):
        if subject := _subject(binding, user, ""):
            yield _described(binding, subject), _role_rules(api, binding["roleRef"], "")
    for binding in api.snapshot(ROLE_BINDING, namespace) if namespace else ():
        if subject := _subject(binding, user, namespace):
            yield _described(binding, subject), _role_rules(api, binding["roleRef"], namespace)


def _subject(binding: Object, user: User, namespace: str) -> Object | None:
    """The first subject of a binding that is this user."""

    def applies(subject: Object) -> bool:
        name = subject.get("name")
        if subject.get("kind") == "ServiceAccount":
            where = subject.get("namespace") or namespace
            return bool(where) and user.name == f"system:serviceaccount:{where}:{name}"
        if subject.get("kind") == "Group":
            return name in user.groups
        return subject.get("kind") == "User" and name == user.name

    return next(filter(applies, binding.get("subjects") or []), None)


def _described(binding: Object, subject: Object) -> str:
    """A binding as a decision's reason names it."""
    kind, where = binding["kind"], objects.namespace(binding)
    name = f"{objects.name(binding)}/{where}" if kind == "RoleBinding" else objects.name(binding)
    role, who = binding["roleRef"], subject.get("name")
    if subject.get("kind") == "ServiceAccount":
        who = f"{who}/{subject.get('namespace') or where}"
    return f'{kind} "{name}" of {role["kind"]} "{role["name"]}" to {subject["kind"]} "{who}"'


def _role_rules(api: Api, reference: Object, namespace: str) -> list[Object] | str:
    """A role's rules, those that it aggregates included; in words, that there is no such role."""
    kind = ROLE if reference.get("kind") == "Role" else CLUSTER_ROLE
    role = api.find(kind, namespace if kind == ROLE else "", str(reference.get("name")))
    if role is None:
        return f'{kind.kind.lower()}.{kind.group} "{reference.get("name")}" not found'
    rules: list[Object] = list(role.get("rules") or [])
    for selector in (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or []:
        wanted = (selector.get("matchLabels") or {}).items()
        for other in api.snapshot(CLUSTER_ROLE):
            if other is not role and wanted <= objects.labels(other).items():
                rules += other.get("rules") or []
    return rules


def _allows(rule: Object, wanted: Object) -> bool:
    resource, part = wanted.get("resource") or "", wanted.get("subresource") or ""
    whole = f"{resource}/{part}" if part else resource
    names = rule.get("resourceNames") or []
    return (
        _has(rule, "verbs", wanted.get("verb"))
        and _has(rule, "apiGroups", wanted.get("group") or "")
        and (
            _has(rule, "resources", whole) or (bool(part) and _has(rule, "resources", f"*/{part}"))
        )
        and (not names or wanted.get("name") in names)
    )


def _has(rule: Object, field: str, value: Any) -> bool:
    allowed = rule.get(field) or []
    return "*" in allowed or value in allowed
