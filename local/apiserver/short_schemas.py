"""Short schemas of the custom resources, for a server that was given no definitions.

They refuse what the components would trip over first, and let every field through that they do
not name.
"""

from __future__ import annotations

from kfp_pytorch.launcher.constants import Kind
from kfp_pytorch.local.apiserver.errors import Object

_STRING: Object = {"type": "string"}
_INTEGER: Object = {"type": "integer"}
_BOOLEAN: Object = {"type": "boolean"}
_ANYTHING: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_STRINGS: Object = {"type": "array", "items": _STRING}


def _open(required: tuple[str, ...] = (), /, **properties: Object) -> Object:
    """An object with some known fields, and any others."""
    return {**_ANYTHING, "properties": properties, "required": list(required)}


def _keyed(item: Object, key: str = "name") -> Object:
    """A list whose entries are told apart by a key."""
    return {
        "type": "array",
        "items": item,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": [key],
    }


_CONTAINER = _open(
    ("name",),
    name=_STRING,
    image=_STRING,
    command=_STRINGS,
    args=_STRINGS,
    env={"type": "array", "items": _open(("name",), name=_STRING, value=_STRING)},
)
_POD_SPEC = _open(
    ("containers",),
    containers=_keyed(_CONTAINER),
    initContainers=_keyed(_CONTAINER),
    volumes=_keyed(_open(("name",), name=_STRING)),
    restartPolicy=_STRING,
    serviceAccountName=_STRING,
)
_CONDITIONS: Object = {
    "type": "array",
    "items": _open(("status", "type"), type=_STRING, status=_STRING),
}
_STATUS = _open(conditions=_CONDITIONS)
_RUN_POLICY = _open(
    activeDeadlineSeconds=_INTEGER,
    backoffLimit=_INTEGER,
    cleanPodPolicy=_STRING,
    managedBy=_STRING,
    suspend=_BOOLEAN,
    ttlSecondsAfterFinished=_INTEGER,
)

_REPLICA_FIELDS = {
    "PyTorchJob": "pytorchReplicaSpecs",
    "TFJob": "tfReplicaSpecs",
    "MPIJob": "mpiReplicaSpecs",
    "XGBoostJob": "xgbReplicaSpecs",
    "PaddleJob": "paddleReplicaSpecs",
    "JAXJob": "jaxReplicaSpecs",
}


def _training_job(field: str) -> Object:
    template = _open(metadata=_ANYTHING, spec=_POD_SPEC)
    replica = _open(replicas=_INTEGER, restartPolicy=_STRING, template=template)
    replicas = {"type": "object", "additionalProperties": replica}
    spec = _open((field,), **{field: replicas, "runPolicy": _RUN_POLICY})
    return _open(spec=spec, status=_STATUS)


def schema(kind: Kind) -> Object | None:
    """The short schema of a kind, or None where nothing of it is checked."""
    if kind.kind in _REPLICA_FIELDS:
        return _training_job(_REPLICA_FIELDS[kind.kind])
    return _SCHEMAS.get(kind.kind)


_RUNTIME = _open(spec=_open(("containers",), containers=_keyed(_CONTAINER)))
_SCHEMAS: dict[str, Object] = {
    "TrainJob": _open(
        spec=_open(("runtimeRef",), runtimeRef=_open(("name",), name=_STRING), suspend=_BOOLEAN),
        status=_STATUS,
    ),
    "InferenceService": _open(
        spec=_open(("predictor",), predictor=_open(minReplicas=_INTEGER, maxReplicas=_INTEGER)),
        status=_STATUS,
    ),
    "ServingRuntime": _RUNTIME,
    "ClusterServingRuntime": _RUNTIME,
    "Tensorboard": _open(spec=_open(("logspath",), logspath=_STRING)),
}
