"""Reads of a whole cluster, within what the account may read."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kfp_pytorch.launcher.constants import Kind
from kfp_pytorch.launcher.kubernetes.api_errors import Call, KindAbsent, NotFound
from kfp_pytorch.launcher.kubernetes.client import EVERYWHERE, Kube, Objects
from kfp_pytorch.launcher.kubernetes.objects import Object, dig, each

_REVIEWS = "authorization.k8s.io"
_ACCOUNT = "system:serviceaccount:"
# In seconds. A server that starts denies everything until it has read the roles.
_ASK_AGAIN_AFTER = 1.0


class Unreadable(Exception):
    """The account may not read what a check needs, as in `list nodes`."""


class Survey:
    """The reads of one examination; it asks for each permission before it reads.

    `kube`: the connection, in the namespace of the run. `account`: the service account of the
    steps, in that namespace; empty where this is a step. `sleep`: how it waits.
    """

    def __init__(
        self, kube: Kube, account: str = "", sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.kube = kube
        self.namespace = kube.namespace
        self.account = account
        self._sleep = sleep
        self._allowed: dict[tuple[str, ...], bool] = {}

    @property
    def account_name(self) -> str:
        """The account of the steps, as a message names it."""
        if self.account:
            return f"{_ACCOUNT}{self.namespace}:{self.account}"
        return self.kube.transport.credentials.account or "this account"

    def version(self) -> str:
        """The server's version, such as `v1.34.4`."""
        return str(self._json("GET", "/version").get("gitVersion") or "of an unknown version")

    def versions(self, group: str) -> list[str]:
        """The versions of an API group that are served, the preferred one first."""
        try:
            found = self._json("GET", f"/apis/{group}", group)
        except KindAbsent:
            return []
        preferred = dig(found, "preferredVersion", "version")
        names = [str(version.get("version")) for version in each(found, "versions")]
        return sorted(names, key=lambda name: name != preferred)

    def serves(self, kind: Kind) -> bool:
        """Whether a kind is served, in its version."""
        return not kind.group or self.kube.serves(kind)

    def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        """An object, or None where it is not there. Raises Unreadable."""
        self._check("get", kind, namespace, name)
        try:
            return self.kube.get(kind, name, namespace)
        except (NotFound, KindAbsent):
            return None

    def list(self, kind: Kind, namespace: str = "", *, labels: str = "") -> Objects:
        """The objects of a kind; `namespace`: as of `Kube.list_at`. Raises Unreadable."""
        self._check("list", kind, namespace)
        try:
            return self.kube.list_at(kind, labels=labels, namespace=namespace)[0]
        except KindAbsent:
            return []

    def may_read(self, verb: str, kind: Kind, namespace: str = "", name: str = "") -> bool:
        """Whether who runs the checks may get or list objects."""
        where = "" if namespace == EVERYWHERE or not kind.namespaced else namespace
        if kind.namespaced and not namespace:
            where = self.namespace
        return self._ask("", verb, kind.group, kind.plural, where, name)

    def step_may(self, verb: str, group: str, resource: str) -> bool:
        """Whether the steps' account has a permission in the run's namespace. Raises Unreadable.

        `resource`: as RBAC names it, such as `pods/log`.
        """
        if self.account and not self._ask("", "create", _REVIEWS, "subjectaccessreviews"):
            raise Unreadable("create subjectaccessreviews")
        user = self.account_name if self.account else ""
        return self._ask(user, verb, group, resource, self.namespace)

    def _check(self, verb: str, kind: Kind, namespace: str, name: str = "") -> None:
        if not self.may_read(verb, kind, namespace, name):
            place = "in all namespaces" if namespace == EVERYWHERE else ""
            place = f"in {namespace or self.namespace}" if kind.namespaced and not place else place
            raise Unreadable(f"{verb} {kind.plural} {place}".strip())

    def _ask(
        self, user: str, verb: str, group: str, resource: str, where: str = "", name: str = ""
    ) -> bool:
        """Whether a user, or whoever runs the checks, has a permission; a no is asked twice."""
        key = (user, verb, group, resource, where, name)
        if key not in self._allowed:
            allowed = self._review(*key)
            if not allowed:
                if all(self._allowed.values()):
                    self._sleep(_ASK_AGAIN_AFTER)
                allowed = self._review(*key)
            self._allowed[key] = allowed
        return self._allowed[key]

    def _review(
        self, user: str, verb: str, group: str, resource: str, where: str, name: str
    ) -> bool:
        plural, _, part = resource.partition("/")
        wanted = {"verb": verb, "group": group, "resource": plural, "subresource": part}
        wanted |= {"namespace": where, "name": name}
        spec: Object = {"resourceAttributes": {key: each for key, each in wanted.items() if each}}
        if user:
            groups = ["system:serviceaccounts", f"system:serviceaccounts:{self.namespace}"]
            spec |= {"user": user, "groups": [*groups, "system:authenticated"]}
        kind = "SubjectAccessReview" if user else "SelfSubjectAccessReview"
        plural = f"{kind.lower()}s"
        body = {"apiVersion": f"{_REVIEWS}/v1", "kind": kind, "spec": spec}
        answer = self._json("POST", f"/apis/{_REVIEWS}/v1/{plural}", _REVIEWS, plural, body)
        return dig(answer, "status", "allowed") is True

    def _json(
        self, method: str, path: str, group: str = "", resource: str = "", body: Any = None
    ) -> Object:
        verb = "create" if method == "POST" else "get"
        call = Call(verb, resource or path, group, "", "", self.account_name)
        transport = self.kube.transport
        return transport.retried(lambda: transport.json(call, method, path, body=body))
