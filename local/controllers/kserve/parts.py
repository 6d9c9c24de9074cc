"""What an InferenceService is made of in each of its modes: reading, writing and routing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kfp_pytorch.launcher.constants import POD, SERVING_RUNTIME, Kind
from kfp_pytorch.local.apiserver import objects, registry
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.controllers.kserve import predictor
from kfp_pytorch.local.controllers.kserve.ingress import Backend, Ingresses, Target
from kfp_pytorch.local.controllers.kserve.runtimes import select_runtime
from kfp_pytorch.local.controllers.kserve.storage import storage_variables
from kfp_pytorch.local.controllers.kubernetes.ports import Ports
from kfp_pytorch.local.controllers.kubernetes.requests import Requests
from kfp_pytorch.local.controllers.kubernetes.status import is_ready


class Parts:
    """The objects and the addresses of one cluster's InferenceServices."""

    def __init__(self, api: Api, ports: Ports, requests: Requests) -> None:
        self.api = api
        self._ports = ports
        self._ingresses = Ingresses(requests)
        # The names of a service's addresses, by its uid.
        self._routed: dict[str, set[str]] = {}

    def runtime_of(self, service: Object) -> Object:
        """The ServingRuntime of a service. Raises Refusal."""
        runtimes = list(self.api.snapshot(SERVING_RUNTIME, objects.namespace(service)))
        runtimes += self.api.snapshot(registry.CLUSTER_SERVING_RUNTIME)
        return select_runtime(service, runtimes)

    def deployment_of(self, service: Object) -> Object:
        """The Deployment of a service's predictor. Raises Refusal."""
        namespace = objects.namespace(service)
        account = service["spec"]["predictor"].get("serviceAccountName", "default")
        variables = storage_variables(
            service,
            self.api.find(registry.SERVICE_ACCOUNT, namespace, account),
            partial(self.api.find, registry.SECRET, namespace),
        )
        return predictor.make_deployment(service, self.runtime_of(service), variables)

    def write(self, kind: Kind, wanted: Object) -> None:
        """Create an object, or change its spec; replicas that it does not state stay."""
        existing = self.api.find(kind, objects.namespace(wanted), objects.name(wanted))
        if existing is None:
            self.api.create(kind, wanted)
            return
        kept = {key: value for key, value in existing["spec"].items() if key == "replicas"}
        changed = {**objects.copy(existing), "spec": {**kept, **objects.copy(wanted["spec"])}}
        self.api.update(kind, changed)

    def create_missing(self, kind: Kind, wanted: Object) -> None:
        """Create an object unless there is one of its name."""
        if self.api.find(kind, objects.namespace(wanted), objects.name(wanted)) is None:
            self.api.create(kind, wanted)

    def pods(self, service: Object, **labels: str) -> tuple[Object, ...]:
        """The pods of a service with these labels, the newest first."""
        wanted = {predictor.POD_LABEL: objects.name(service), **labels}.items()
        found = self.api.snapshot(POD, objects.namespace(service))
        own = (pod for pod in found if wanted <= objects.labels(pod).items())
        return tuple(sorted(own, key=_age, reverse=True))

    def target(self, percent: int, pods: Sequence[Object]) -> Target:
        """Where a share of the traffic goes: to those pods that are ready."""
        return Target(percent, [self._backend(pod) for pod in pods if is_ready(pod)])

    def route(self, service: Object, name: str, targets: Sequence[Target]) -> str:
        """Route one of a service's addresses; returns its URL, which stays.

        `name`: the name of the address within the service; empty for the service's own.
        """
        uid: str = objects.metadata(service)["uid"]
        self._routed.setdefault(uid, set()).add(name)
        return self._ingresses.route((uid, name), targets)

    def close(self, service: Object, but: Sequence[str] = ()) -> None:
        """Close a service's addresses, but for some."""
        uid: str = objects.metadata(service)["uid"]
        for name in self._routed.get(uid, set()) - set(but):
            self._ingresses.close((uid, name))
            self._routed[uid].discard(name)

    def close_all(self) -> None:
        """Close every address."""
        self._ingresses.close_all()

    def _backend(self, pod: Object) -> Backend:
        port = self._ports.of(pod, predictor.port_of(pod["spec"]))
        return Backend(objects.metadata(pod)["uid"], port)


def _age(pod: Object) -> tuple[str, int]:
    """Is higher for newer pods."""
    metadata = objects.metadata(pod)
    return str(metadata["creationTimestamp"]), int(metadata["resourceVersion"])
