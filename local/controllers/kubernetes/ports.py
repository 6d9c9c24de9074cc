"""Free ports of this machine, in place of the ports of pods."""

from __future__ import annotations

import random
import socket
from itertools import pairwise

from kfp_pytorch.launcher.constants import POD, SERVICE, Kind
from kfp_pytorch.local import loopback
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.store.api import DELETED, Api, Change
from kfp_pytorch.local.processes import programs

# Systems take the ports of outgoing connections from above these. It takes a program seconds to
# start and listen; until then no other program may get its port.
_RANGE = range(20_000, 32_000)


class Ports:
    """The free port of each port of each pod, the same for as long as the pod's owner exists.

    A recreated pod listens where the old one did: that port is in its peers' variables.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._given: dict[tuple[str, str, int], int] = {}
        api.on_change(self._forget)

    def of(self, pod: Object, port: int) -> int:
        """The port of this machine for a port of a pod, or its headless service. Raises OSError."""
        own = port if _is_fixed(pod, port) and port not in self._given.values() else 0
        return self._port((_owner_uid(pod), _host(pod), port), own)

    def _port(self, key: tuple[str, str, int], own: int = 0) -> int:
        if key not in self._given:
            self._given[key] = own if own and _is_free(own) else self._free()
        return self._given[key]

    def endpoint(self, namespace: str, host: str, port: int | None) -> int | None:
        """The port where a service is reached; see `rewriting.Endpoint`.

        The bare name of a service counts for headless ones alone, such as those of PyTorchJobs.
        Elsewhere such a word is more likely something else, such as the name of a model.
        """
        service = self._service(host, namespace)
        if service is None:
            return self._of_host(*host.partition(".")[::2], namespace, port)
        if port is None:
            return 0 if _is_headless(service) else None
        if _is_headless(service):
            return self.of(service, port)
        return self._behind(service, port)

    def _service(self, host: str, namespace: str) -> Object | None:
        name = _service_name(host, namespace)
        return self._api.find(SERVICE, namespace, name) if name else None

    def _of_host(self, host: str, rest: str, namespace: str, port: int | None) -> int | None:
        """The port of a pod that has a host name in a headless service of the same owner."""
        service = self._service(rest, namespace)
        if service is None or not _is_headless(service):
            return None
        if not host.startswith(f"{objects.name(service)}-"):
            return None
        return 0 if port is None else self._port((_owner_uid(service), host, port))

    def _behind(self, service: Object, port: int) -> int | None:
        spec = service.get("spec") or {}
        entry = next((each for each in spec.get("ports") or [] if each["port"] == port), None)
        selector = (spec.get("selector") or {}).items()
        if entry is None or not selector:
            return None
        target = entry.get("targetPort") or port
        for pod in self._api.snapshot(POD, objects.namespace(service)):
            if selector <= objects.labels(pod).items() and not objects.is_terminating(pod):
                number = container_port(pod, target)
                return None if number is None else self.of(pod, number)
        return None

    def _free(self) -> int:
        given = set(self._given.values())
        for _ in _RANGE:
            port = random.choice(_RANGE)  # noqa: S311 (no secret)
            if port not in given and _is_free(port):
                return port
        raise OSError(
            f"no port of {loopback.ADDRESS} from {_RANGE.start} to {_RANGE.stop - 1} is free; end "
            "what listens there, or pods that are not needed"
        )

    def _forget(self, _kind: Kind, change: Change) -> None:
        if change.type == DELETED:
            uid = objects.metadata(change.object)["uid"]
            for key in [key for key in self._given if key[0] == uid]:
                del self._given[key]


def _host(pod: Object) -> str:
    """A pod's host name where it has one in a service; its peers know it by that. Else its name."""
    spec = pod.get("spec") or {}
    return str(spec["hostname"]) if spec.get("subdomain") else objects.name(pod)


def _is_headless(service: Object) -> bool:
    return (service.get("spec") or {}).get("clusterIP") == "None"


def _is_fixed(pod: Object, port: int) -> bool:
    """Whether a container listens on its port without being told of it, so on no other."""
    for container in (pod.get("spec") or {}).get("containers") or []:
        if any(each.get("containerPort") == port for each in container.get("ports") or []):
            return not _is_told(container, str(port))
    return False


def _is_told(container: Object, port: str) -> bool:
    """Whether an option, an address or a variable has a port that the kubelet rewrites."""
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    script = programs.script_at(words)
    parts = [
        part
        for at, word in enumerate(words)
        if at == script or " " not in word
        for part in programs.WORD.findall(word)
    ]
    variables = ((each["name"], each.get("value")) for each in container.get("env") or [])
    return (
        any(value == port and programs.PORT_VARIABLE.fullmatch(name) for name, value in variables)
        or any(
            value == port and programs.PORT_OPTION.fullmatch(name)
            for name, value in pairwise(parts)
        )
        or any(bound[2] == port for bound in map(programs.BOUND.fullmatch, parts) if bound)
    )


def _is_free(port: int) -> bool:
    with socket.socket(loopback.FAMILY) as listener:
        try:
            listener.bind((loopback.ADDRESS, port))
        except OSError:
            return False
    return True


def container_port(pod: Object, given: int | str) -> int | None:
    """The number of a pod's port that is given by number or by name; None for a name unknown."""
    if isinstance(given, int) or given.isdecimal():
        return int(given)
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or []:
            if port.get("name") == given:
                return int(port["containerPort"])
    return None


def _owner_uid(obj: Object) -> str:
    controllers = (owner["uid"] for owner in objects.owners(obj) if owner.get("controller"))
    return str(next(controllers, objects.metadata(obj)["uid"]))


def _service_name(host: str, namespace: str) -> str:
    name, _, rest = host.partition(".")
    known = ("", namespace, f"{namespace}.svc", f"{namespace}.svc.cluster.local")
    return name if rest in known else ""
