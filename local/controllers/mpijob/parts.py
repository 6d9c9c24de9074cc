"""What an MPIJob's launcher needs besides its workers: a ConfigMap, an account and its rights.

Source: kubeflow/trainer v1.9.3, `pkg/controller.v1/mpi/mpijob_controller`.
"""

from __future__ import annotations

from kfp_pytorch.launcher.constants import CONFIG_MAP, MPIJOB, Kind
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.registry import ROLE, ROLE_BINDING, SERVICE_ACCOUNT
from kfp_pytorch.local.controllers.mpijob import pods
from kfp_pytorch.local.controllers.trainingoperator.mpi import HOSTFILE, LAUNCHER, WORKER


def config_map(job: Object, running: list[str], kubectl_exec: str) -> Object:
    """The ConfigMap with the hostfile and the scripts.

    `running`: the names of workers that run. `kubectl_exec`: what stands for `kubectl exec`.
    """
    slots = job["spec"].get("slotsPerWorker")
    slots = 1 if slots is None else int(slots)
    hosts = [pods.worker_name(job, index) for index in range(pods.workers(job))]
    first = [pods.launcher_name(job)] if pods.launcher_has_gpus(job) else []
    found = [f"echo {name}:{slots}" for name in sorted(running)]
    discover = ["#!/bin/sh", *(f"echo {name}:{slots}\n" for name in first), *found]
    data = {
        HOSTFILE: "".join(f"{host} slots={slots}\n" for host in [*first, *hosts]),
        pods.KUBEXEC: _kubexec(job, kubectl_exec),
        pods.DISCOVER_HOSTS: "\n".join(discover),
    }
    return {**_owned(job, CONFIG_MAP, pods.config_name(job)), "data": data}


def _kubexec(job: Object, kubectl_exec: str) -> str:
    # On a cluster `kubectl exec` takes the first container where none is named.
    workers = job["spec"]["mpiReplicaSpecs"].get(WORKER)
    first = workers["template"]["spec"]["containers"][0]["name"] if workers else ""
    container = job["spec"].get("mainContainer") or first
    return (
        "#!/bin/sh\nset -x\nPOD_NAME=$1\nshift\n"
        f'{kubectl_exec} ${{POD_NAME}} --container {container} -- /bin/sh -c "$*"'
    )


def account_name(job: Object) -> str:
    """The name of the launcher's account."""
    spec = job["spec"]["mpiReplicaSpecs"][LAUNCHER]["template"]["spec"]
    return str(spec.get("serviceAccountName") or pods.launcher_name(job))


def rights(job: Object) -> list[Object]:
    """The launcher's account, and the role and binding that let it start commands in workers."""
    name, account = pods.launcher_name(job), account_name(job)
    hosts = [pods.worker_name(job, index) for index in range(pods.workers(job))]
    rules = [
        {"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["pods"]},
        {"verbs": ["create"], "apiGroups": [""], "resources": ["pods/exec"]}
        | {"resourceNames": hosts},
    ]
    subject = {"kind": SERVICE_ACCOUNT.kind, "name": account, "namespace": objects.namespace(job)}
    reference = {"apiGroup": ROLE.group, "kind": ROLE.kind, "name": name}
    return [
        _owned(job, SERVICE_ACCOUNT, account),
        {**_owned(job, ROLE, name), "rules": rules},
        {**_owned(job, ROLE_BINDING, name), "subjects": [subject], "roleRef": reference},
    ]


def _owned(job: Object, kind: Kind, name: str) -> Object:
    meta = {"name": name, "labels": {"app": objects.name(job)}}
    return objects.controlled_by(job, MPIJOB, kind, meta)
