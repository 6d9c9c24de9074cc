"""What the operator's admission webhook refuses in a PyTorchJob.

Source: kubeflow/trainer v1.9.3, `pkg/webhooks/pytorch` and `pkg/common/util/webhooks.go`. The
names of pods and services are not checked: a job whose name is too long for them is accepted, and
never runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from kfp_pytorch.launcher.constants import PYTORCH_CONTAINER
from kfp_pytorch.local.apiserver import errors, objects
from kfp_pytorch.local.apiserver.errors import Cause, Object
from kfp_pytorch.local.apiserver.validation import fields
from kfp_pytorch.local.controllers.pytorchjob.pods import MASTER, REPLICA_TYPES, WORKER

WEBHOOK = "validator.pytorchjob.training-operator.kubeflow.org"
_LABEL_1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"
_MANAGERS = ("kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue")
_REPLICA_SPECS = "spec.pytorchReplicaSpecs"


def check(job: Object) -> None:
    """Refuse an invalid PyTorchJob. Raises errors.ApiError: 403, with everything that is wrong."""
    causes = [*_name(objects.name(job)), *_manager(job), *_elastic(job), *_replicas(job)]
    wrong = [f"{cause.field}: {cause.message}" for cause in causes]
    if wrong:
        raise errors.denied(WEBHOOK, wrong[0] if len(wrong) == 1 else f"[{', '.join(wrong)}]")


def _name(name: str) -> Iterator[Cause]:
    head = f'Invalid value: "{name}": '
    causes = fields.check_dns(name, "metadata.name", _LABEL_1035)
    messages = [cause.message.removeprefix(head) for cause in causes]
    if messages:
        yield fields.invalid_value("metadata.name", name, f"should match: {','.join(messages)}")


def _manager(job: Object) -> Iterator[Cause]:
    manager = (job["spec"].get("runPolicy") or {}).get("managedBy")
    if manager is not None and manager not in _MANAGERS:
        yield fields.unsupported("spec.runPolicy.managedBy", manager, _MANAGERS)


def _elastic(job: Object) -> Iterator[Cause]:
    spec = job["spec"]
    policy = spec.get("elasticPolicy")
    if policy is None:
        return
    if WORKER not in (spec.get("pytorchReplicaSpecs") or {}):
        why = "must be configured if elastic policy is used"
        yield fields.required(f"{_REPLICA_SPECS}[{WORKER}]", why)
    if policy.get("nProcPerNode") is not None and spec.get("nprocPerNode") is not None:
        why = "must not be used with spec.nprocPerNode"
        yield fields.forbidden("spec.elasticPolicy.nProcPerNode", why)


def _replicas(job: Object) -> Iterator[Cause]:
    specs = job["spec"].get("pytorchReplicaSpecs")
    if not specs:
        yield fields.required(_REPLICA_SPECS, "must be required")
        return
    for replica_type, spec in specs.items():
        path = f"{_REPLICA_SPECS}[{replica_type}]"
        if replica_type not in REPLICA_TYPES:
            yield fields.unsupported(path, replica_type, REPLICA_TYPES)
        yield from _containers(spec or {}, f"{path}.template.spec.containers")
        count = (spec or {}).get("replicas")
        if replica_type == MASTER and count != 1:
            yield fields.forbidden(f"{path}.replicas", "must be 1")
        elif count is not None and count < 1:
            yield fields.forbidden(f"{path}.replicas", "must be at least 1")


def _containers(replica: Object, path: str) -> Iterator[Cause]:
    template = replica.get("template") or {}
    containers = (template.get("spec") or {}).get("containers") or []
    if not containers:
        yield fields.required(path, "must be specified")
    for index, container in enumerate(containers):
        if not container.get("image"):
            yield fields.required(f"{path}[{index}].image", "must be required")
    if all(container.get("name") != PYTORCH_CONTAINER for container in containers):
        why = f"must have at least one container with name {PYTORCH_CONTAINER}"
        yield fields.required(path, why)
