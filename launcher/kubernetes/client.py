"""A small, typed client of the Kubernetes API. Every other module uses the cluster through it.

Objects are plain dictionaries in their JSON form, and errors are typed (`api_errors`). Requests
are retried where that can help (`transport`), except for streams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from urllib.parse import quote

from kfp_pytorch.launcher.constants import POD, Kind
from kfp_pytorch.launcher.kubernetes.api_errors import (
    Call,
    Expired,
    Forbidden,
    KindAbsent,
    NotFound,
    Unreachable,
)
from kfp_pytorch.launcher.kubernetes.credentials import Credentials, load
from kfp_pytorch.launcher.kubernetes.objects import Object, dig, each
from kfp_pytorch.launcher.kubernetes.streams import LONGEST_LINE, LogStream, WatchStream
from kfp_pytorch.launcher.kubernetes.transport import RetryPolicy, Transport, ignore_report

PAGE = 500
# Bytes of a log, from its beginning: more than a hundred lines, each of at most 16 KiB.
MOST_OF_A_LOG = 4 << 20
Objects = list[Object]
# In place of a namespace's name, where objects are listed.
EVERYWHERE = "*"


def connect(
    namespace: str = "",
    *,
    policy: RetryPolicy | None = None,
    notify: Callable[[str], None] = ignore_report,
    load_credentials: Callable[[], Credentials] = load,
) -> Kube:
    """Connects to the cluster that this process belongs to.

    Args:
        namespace: The namespace to work in; empty for the service account's, or the
            kubeconfig context's, or `default`.
        policy: How long requests are retried; None for the default.
        notify: Is called with a message when the server has been unavailable for a while.
        load_credentials: Reads the credentials; called again whenever the server answers 401.

    Returns:
        The connection. No request has been made yet.

    Raises:
        NoCluster: There is neither a kubeconfig nor a service account.
    """
    return Kube(Transport(load_credentials, policy or RetryPolicy(), notify), namespace)


class Kube:
    """A connection to one API server, safe to use from several threads.

    Every method raises `ApiError` or one of its subclasses when the server refuses, `Forbidden`
    when a permission is missing, and `CannotObserve` when the unavailability budget is used up.

    Attributes:
        namespace: The namespace used where a call names none.
        own_namespace: The namespace of the credentials: this step's own.
    """

    def __init__(self, transport: Transport, namespace: str = "") -> None:
        self._transport = transport
        self.own_namespace = transport.credentials.namespace
        self.namespace = namespace or self.own_namespace

    @property
    def transport(self) -> Transport:
        """What sends the requests that no method here makes."""
        return self._transport

    def with_policy(self, policy: RetryPolicy) -> Kube:
        """Another connection to the same server, with a policy of its own.

        Args:
            policy: Its policy.

        Returns:
            The connection; it shares no socket with this one.
        """
        return Kube(self._transport.with_policy(policy), self.namespace)

    def now(self) -> datetime:
        """The time in UTC by the API server's clock, to the second."""
        return datetime.now(UTC) + self._transport.clock_offset

    def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        """Reads one object.

        Args:
            kind: Its kind.
            name: Its name.
            namespace: Its namespace.

        Returns:
            The object.

        Raises:
            NotFound: It is not there.
        """
        return self._object(kind, "get", "GET", name, namespace)

    def serves(self, kind: Kind) -> bool:
        """Whether the server's discovery lists a kind; every service account may read it.

        Args:
            kind: A kind of an API group that has a name.
        """
        call = self._call("get", kind.plural, kind)
        path = f"/apis/{kind.group}/{kind.version}"
        try:
            found = self._transport.retried(lambda: self._transport.json(call, "GET", path))
        except KindAbsent:
            return False
        except Forbidden:
            return True
        return any(item.get("name") == kind.plural for item in each(found, "resources"))

    def create(self, kind: Kind, obj: Object, *, unknown_fields: str = "") -> Object:
        """Creates an object.

        An attempt whose answer was lost may have succeeded; the next raises `AlreadyExists`.

        Args:
            kind: Its kind.
            obj: The object.
            unknown_fields: `Strict` has the server refuse fields that the kind does not have,
                which it would drop silently. Servers before 1.25 ignore this.

        Returns:
            The object as it was created.

        Raises:
            AlreadyExists: An object of this name exists.
        """
        query = {"fieldValidation": unknown_fields}
        return self._object(kind, "create", "POST", query=query, body=obj)

    def replace(self, kind: Kind, obj: Object, *, unknown_fields: str = "") -> Object:
        """Replaces an object.

        Args:
            kind: Its kind.
            obj: The object, with the resourceVersion that it was read with.
            unknown_fields: As of `create`.

        Returns:
            The object as it is now.

        Raises:
            Conflict: It has changed since it was read.
        """
        query = {"fieldValidation": unknown_fields}
        return self._object(kind, "update", "PUT", obj["metadata"]["name"], query=query, body=obj)

    def delete(self, kind: Kind, name: str, uid: str = "", propagation: str = "Foreground") -> None:
        """Deletes an object.

        Args:
            kind: Its kind.
            name: Its name.
            uid: Only if it still has this uid; empty for any. Raises `Conflict` otherwise.
            propagation: `Foreground`: it stays, with a deletionTimestamp, until its pods are gone.
        """
        options: Object = {"propagationPolicy": propagation}
        if uid:
            options["preconditions"] = {"uid": uid}
        call, path = self._call("delete", kind.plural, kind, name), self._path(kind, name)
        # A proxy's page, or an empty answer, is not the server's.
        lost = False

        def attempt() -> None:
            nonlocal lost
            try:
                self._transport.json(call, "DELETE", path, body=options)
            except Unreachable:
                lost = True
                raise
            except NotFound:
                # The attempt whose answer was lost has deleted it.
                if not lost:
                    raise

        self._transport.retried(attempt)

    def list(self, kind: Kind, *, labels: str = "", fields: str = "") -> Objects:
        """Reads all objects that match, as `list_at` does, without the version to watch from."""
        return self.list_at(kind, labels=labels, fields=fields)[0]

    def list_at(
        self, kind: Kind, *, labels: str = "", fields: str = "", namespace: str = ""
    ) -> tuple[Objects, str]:
        """Reads all objects that match, in pages.

        Args:
            kind: Their kind.
            labels: A label selector; empty for all.
            fields: A field selector; empty for all.
            namespace: Their namespace; `EVERYWHERE` for all.

        Returns:
            The objects, and the resourceVersion to watch from.
        """
        call = self._call("list", kind.plural, kind, "", namespace)
        path = self._path(kind, "", namespace)
        selectors = {"labelSelector": labels, "fieldSelector": fields, "limit": str(PAGE)}
        items: Objects = []
        token, expired = "", 0
        while True:
            try:
                page = self._page(call, path, selectors | {"continue": token})
            except Expired:
                # The continue token is older than the server's history: start again, a few times.
                items, token, expired = [], "", expired + 1
                if expired > 3:
                    raise
                continue
            items += [
                i | {"kind": kind.kind, "apiVersion": kind.api_version} for i in page["items"]
            ]
            metadata = page.get("metadata") or {}
            token = metadata.get("continue", "")
            if not token:
                return items, str(metadata.get("resourceVersion", ""))

    def watch(
        self,
        kind: Kind,
        *,
        name: str = "",
        labels: str = "",
        resource_version: str = "",
        namespace: str = "",
        idle_timeout: float = 300.0,
        lifetime: float = 1800.0,
    ) -> WatchStream:
        """Opens a watch. It is not retried.

        Args:
            kind: The kind to watch.
            name: Only the object of this name; empty for all.
            labels: A label selector; empty for all.
            resource_version: Where to begin; empty to begin with what exists, as ADDED events.
            namespace: The namespace.
            idle_timeout: Seconds without an event or bookmark after which the stream is dead.
            lifetime: Seconds after which the server is asked to end it.

        Returns:
            The stream: an iterator of (type, object), bookmarks included.
        """
        call = self._call("watch", kind.plural, kind, name, namespace)
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "fieldSelector": f"metadata.name={name}" if name else "",
            "labelSelector": labels,
            "resourceVersion": resource_version,
            "timeoutSeconds": str(max(1, int(lifetime))),
        }
        path = self._path(kind, "", namespace)
        return WatchStream(
            call, self._transport.send(call, "GET", path, query=query, idle_timeout=idle_timeout)
        )

    def read_log(
        self,
        pod: str,
        container: str,
        *,
        previous: bool = False,
        tail_lines: int = 0,
        since: str = "",
        timestamps: bool = False,
    ) -> str:
        """Reads a container's log.

        Args:
            pod: The pod's name.
            container: The container's name.
            previous: Whether to read the log of the container before its last restart.
            tail_lines: Only so many of the last lines; 0 for all.
            since: Only from this RFC 3339 time on, whole seconds; empty for all.
            timestamps: Whether each line begins with its time.

        Returns:
            The text, of a very long log the first 4 MiB; bytes that are not UTF-8 are replaced.
        """
        call, path = self._call("get", "pods/log", POD, pod), self._path(POD, pod, "", "log")
        query = _log_query(container, since, timestamps) | {
            "previous": "true" if previous else "",
            "tailLines": str(tail_lines or ""),
            "limitBytes": str(MOST_OF_A_LOG),
        }
        answer = self._transport.retried(
            lambda: self._transport.send(call, "GET", path, query=query)
        )
        return bytes(answer.data).decode("utf-8", "replace")

    def stream_log(
        self,
        pod: str,
        container: str,
        *,
        since: str = "",
        idle_timeout: float,
        previous: bool = False,
        follow: bool = True,
        longest_line: int = LONGEST_LINE,
    ) -> LogStream:
        """Reads a container's log as it comes, each line with its time. It is not retried.

        Args:
            pod: The pod's name.
            container: The container's name.
            since: Only from this RFC 3339 time on, whole seconds; empty for all.
            idle_timeout: Seconds without a line after which the stream counts as dead.
            previous: Whether to read the log of the container before its last restart.
            follow: Whether to go on until the container ends.
            longest_line: Bytes of a line, of which the rest is left out.

        Returns:
            The stream: an iterator of lines.
        """
        call, path = self._call("get", "pods/log", POD, pod), self._path(POD, pod, "", "log")
        query = _log_query(container, since, timestamps=True) | {
            "previous": "true" if previous else "",
            "follow": "true" if follow else "",
        }
        answer = self._transport.send(call, "GET", path, query=query, idle_timeout=idle_timeout)
        return LogStream(call, answer, longest_line)

    def _call(
        self, verb: str, resource: str, kind: Kind, name: str = "", namespace: str = ""
    ) -> Call:
        where = namespace or self.namespace
        return Call(verb, resource, kind.group, where, name, self._transport.credentials.account)

    def _path(self, kind: Kind, name: str = "", namespace: str = "", sub: str = "") -> str:
        root = f"/apis/{kind.group}" if kind.group else "/api"
        path = f"{root}/{kind.version}"
        if kind.namespaced and namespace != EVERYWHERE:
            path += f"/namespaces/{quote(namespace or self.namespace, safe='')}"
        path += f"/{kind.plural}"
        path += f"/{quote(name, safe='')}" if name else ""
        return f"{path}/{sub}" if sub else path

    def _object(
        self,
        kind: Kind,
        verb: str,
        method: str,
        name: str = "",
        namespace: str = "",
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
    ) -> Object:
        call = self._call(verb, kind.plural, kind, name, namespace)
        path = self._path(kind, name, namespace)
        sent = name or ((body or {}).get("metadata") or {}).get("name", "")

        def attempt() -> Object:
            answer = self._transport.json(call, method, path, query=query, body=body)
            got = (answer.get("kind"), dig(answer, "metadata", "name"))
            if got[0] != kind.kind or (sent and got[1] != sent):
                raise Unreachable(call, 200, "", f"the answer is a {got[0]} named {got[1]!r}")
            return answer

        return self._transport.retried(attempt)

    def _page(self, call: Call, path: str, query: Mapping[str, str]) -> Object:
        def attempt() -> Object:
            page = self._transport.json(call, "GET", path, query=query)
            if page.get("items") is None and str(page.get("kind")).endswith("List"):
                # How Go writes an empty list.
                page["items"] = []
            items = page.get("items")
            if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
                raise Unreachable(call, 200, "", f"the answer is a {page.get('kind')}, not a list")
            return page

        return self._transport.retried(attempt)


def _log_query(container: str, since: str, timestamps: bool) -> dict[str, str]:
    stamps = "true" if timestamps else ""
    return {"container": container, "sinceTime": since, "timestamps": stamps}
