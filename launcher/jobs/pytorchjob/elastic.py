"""The input `elastic`: a job of workers only, whose number may change while it trains. No I/O.

https://github.com/kubeflow/trainer/tree/v1.9.3/pkg/controller.v1/pytorch (elastic.go, hpa.go)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import k8s, readers
from kfp_pytorch.launcher.jobs.pods.inputs import MAX_NODES

C10D = "c10d"
_BACKENDS = (C10D, "etcd-v2", "etcd")
# Where etcd listens, and what the operator has for the first worker.
_ETCD_PORT, PORT = 2379, 23456
# A lost rank counts against it on every node, so it is no number of failures of the whole job.
_MAX_RESTARTS = 10
_FIELDS = (
    *("min_nodes", "max_nodes", "max_restarts", "rdzv_backend", "rdzv_host", "rdzv_port"),
    *("rdzv_id", "rdzv_conf", "metrics"),
)
# pkg/controller.v1/pytorch/elastic.go
_VARIABLES = (
    *("PET_MAX_RESTARTS", "PET_RDZV_BACKEND", "PET_RDZV_CONF", "PET_RDZV_ENDPOINT"),
    *("PET_RDZV_ID", "PET_STANDALONE"),
)
_METRICS = ("Resource", "ContainerResource", "Pods", "Object", "External")
_NODES = partial(readers.integer, minimum=1, maximum=MAX_NODES)


@dataclass(frozen=True)
class Elastic:
    """What the input `elastic` says."""

    min_nodes: int  # below so many the job does not train
    max_nodes: int  # 0 for num_nodes
    max_restarts: int  # restarts of the ranks by their agents
    rdzv_backend: str
    rdzv_host: str  # empty for the first worker
    rdzv_port: int  # 0 for that of the first worker
    rdzv_id: str  # empty for the job's name
    rdzv_conf: dict[str, str] = field(default_factory=dict)  # options of torchrun's rendezvous
    metrics: tuple[dict[str, Any], ...] = ()  # by which an autoscaler changes the number

    def policy(self, job_name: str) -> dict[str, Any]:
        """Return the job's `elasticPolicy`."""
        given = {
            "rdzvHost": self.rdzv_host,
            "rdzvPort": self.rdzv_port,
            "rdzvConf": [{"key": key, "value": of} for key, of in self.rdzv_conf.items()],
            "metrics": [dict(metric) for metric in self.metrics],
        }
        return {
            "minReplicas": self.min_nodes,
            "maxReplicas": self.max_nodes,
            "maxRestarts": self.max_restarts,
            "rdzvBackend": self.rdzv_backend,
            # Jobs may share one etcd.
            "rdzvId": self.rdzv_id or job_name,
            **{key: value for key, value in given.items() if value},
        }


def read(name: str, value: Any) -> Elastic | None:
    """Read the input; unset gives None."""
    if readers.is_unset(value):
        return None
    if "standalone" in readers.mapping(name, value):
        raise InputError(
            f"{name} has 'standalone'; the operator writes its variable without a value, which "
            "torchrun fails to read. For one node leave it out: min_nodes 1 and max_nodes 1 do the "
            "same."
        )
    given = readers.known_fields(name, value, _FIELDS)
    given = {key: item for key, item in given.items() if not readers.is_unset(item)}
    backend = readers.choice(f"{name}.rdzv_backend", given.get("rdzv_backend"), _BACKENDS)
    host = k8s.dns_subdomain(f"{name}.rdzv_host", given.get("rdzv_host"))
    port = readers.integer(f"{name}.rdzv_port", given.get("rdzv_port"), maximum=65535)
    if backend != C10D and not host:
        raise InputError(
            f"{name}.rdzv_backend is {backend!r}, and rdzv_host is not set; give the name of the "
            "etcd server's service, which the pods reach."
        )
    read = Elastic(
        min_nodes=_NODES(f"{name}.min_nodes", given.get("min_nodes", 1)),
        max_nodes=_NODES(f"{name}.max_nodes", given["max_nodes"]) if "max_nodes" in given else 0,
        max_restarts=readers.integer(
            f"{name}.max_restarts", given.get("max_restarts", _MAX_RESTARTS)
        ),
        rdzv_backend=backend,
        rdzv_host=host,
        rdzv_port=port or (0 if backend == C10D else _ETCD_PORT),
        rdzv_id=_option(f"{name}.rdzv_id", given.get("rdzv_id", "")),
        rdzv_conf=_options(f"{name}.rdzv_conf", given.get("rdzv_conf")),
        metrics=_metrics(f"{name}.metrics", given.get("metrics")),
    )
    if read.max_nodes and read.min_nodes > read.max_nodes:
        raise InputError(
            f"{name}.min_nodes is {read.min_nodes}, more than max_nodes, {read.max_nodes}."
        )
    return read


def check_environment(where: str, variables: Iterable[Any]) -> None:
    """Refuse variables of the rendezvous: the operator's own come after them, and win."""
    for variable in variables:
        if isinstance(variable, dict) and variable.get("name") in _VARIABLES:
            raise InputError(
                f"{where} may not set {variable['name']}: the operator does, from elastic."
            )


def check_start(elastic: Elastic, num_nodes: int) -> None:
    """Refuse a number of nodes to start with that the job may not have."""
    if not elastic.min_nodes <= num_nodes <= elastic.max_nodes:
        raise InputError(
            f"num_nodes is {num_nodes}, and elastic allows {elastic.min_nodes} to "
            f"{elastic.max_nodes} (min_nodes, max_nodes); the job starts with num_nodes."
        )
    if elastic.metrics and elastic.min_nodes == elastic.max_nodes:
        raise InputError(
            "elastic.metrics is set, and min_nodes and max_nodes leave an autoscaler nothing to "
            f"change: both are {elastic.min_nodes}."
        )


def check_scheduling(elastic: Elastic, min_member: int, queue: str) -> None:
    """Refuse a gang that starts without training or may never start again, and a fixed quota.

    `min_member`: how many pods start together; 0 for the least that train. `queue`: that of Kueue.
    """
    if elastic.metrics and queue:
        raise InputError(
            f"elastic.metrics is set, and the job waits in Kueue's queue {queue!r}, which admits a "
            "fixed number of pods: Kueue would stop the job at each change. Drop one."
        )
    least = elastic.min_nodes
    if 0 < min_member < least:
        raise InputError(
            f"scheduling.min_member is {min_member}, less than elastic.min_nodes, {least}; so few "
            "would hold their nodes and not train. Leave it out for min_nodes."
        )
    if elastic.metrics and min_member > least:
        raise InputError(
            f"scheduling.min_member is {min_member}, and by elastic.metrics the job may come to "
            f"have min_nodes, {least}: one of these that is lost would never start again. Leave it "
            "out for min_nodes."
        )


def _options(name: str, value: Any) -> dict[str, str]:
    given = readers.mapping(name, value)
    return {
        _option(f"{name}: the name", key, least=1): _option(f"{name}[{key!r}]", of)
        for key, of in given.items()
    }


def _option(name: str, value: Any, least: int = 0) -> str:
    word = readers.rendered(name, value).strip()
    if len(word) < least:
        raise InputError(f"{name} of an option is empty; drop it.")
    if re.search(r"[\s,=]", word):
        raise InputError(
            f"{name} is {word!r}; torchrun gets all options as one text, so none may have a blank, "
            "',' or '='."
        )
    return word


def _metrics(name: str, value: Any) -> tuple[dict[str, Any], ...]:
    found = []
    for i, metric in enumerate(readers.sequence(name, value)):
        given = readers.mapping(f"{name}[{i}]", metric)
        kind = readers.choice(f"{name}[{i}].type", given.get("type"), ("", *_METRICS))
        part = f"{kind[:1].lower()}{kind[1:]}"
        if not kind or part not in given:
            raise InputError(
                f"{name}[{i}] is no metric of a HorizontalPodAutoscaler; it has a type, one of "
                f"{', '.join(_METRICS)}, and the part of that name: "
                '{"type": "Resource", "resource": {…}}.'
            )
        found.append(given)
    return tuple(found)
