"""The pods of an MPIJob, and what its launcher needs, as the operator makes them."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_pytorch.local.controllers.mpijob import parts, pods

Object = dict[str, Any]


def job(launcher: Object | None = None, worker: Object | None = None, **spec: Any) -> Object:
    """A job of two workers; `launcher` and `worker` are added to their containers."""
    roles = {"Launcher": (1, launcher), "Worker": (2, worker)}
    specs = {
        role: {
            "replicas": count,
            "template": {
                "metadata": {"labels": {"mine": "x"}, "annotations": {"a": "b"}},
                "spec": {"containers": [{"name": "mpi", "image": "i", **(more or {})}]},
            },
        }
        for role, (count, more) in roles.items()
    }
    meta = {"name": "j", "namespace": "ns", "uid": "u"}
    return pods.defaulted({"metadata": meta, "spec": {"mpiReplicaSpecs": specs, **spec}})


def env(pod: Object) -> dict[str, str]:
    return {each["name"]: each["value"] for each in pod["spec"]["containers"][0]["env"]}


def test_the_launcher_finds_its_workers_and_how_to_start_commands_there() -> None:
    made = pods.launcher(job({"command": ["mpirun"], "env": [{"name": "A", "value": "1"}]}))
    assert made["metadata"]["name"] == "j-launcher"
    assert made["metadata"]["labels"] == {
        "mine": "x",
        "training.kubeflow.org/operator-name": "mpijob-controller",
        "training.kubeflow.org/job-name": "j",
        "training.kubeflow.org/replica-type": "launcher",
        "training.kubeflow.org/job-role": "master",
    }
    assert made["metadata"]["ownerReferences"][0]["kind"] == "MPIJob"
    assert env(made) == {
        "A": "1",
        "OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh",
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "NVIDIA_VISIBLE_DEVICES": "",
        "NVIDIA_DRIVER_CAPABILITIES": "",
        "I_MPI_HYDRA_BOOTSTRAP": "rsh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": "/etc/mpi/kubexec.sh",
    }
    spec = made["spec"]
    assert (spec["serviceAccountName"], spec["restartPolicy"]) == ("j-launcher", "Never")
    assert spec["containers"][0]["command"] == ["mpirun"]
    (initial,) = spec["initContainers"]
    assert (initial["name"], initial["image"]) == (
        "kubectl-delivery",
        "kubeflow/kubectl-delivery:latest",
    )
    paths = {each["name"]: each["mountPath"] for each in spec["containers"][0]["volumeMounts"]}
    assert paths == {"mpi-job-kubectl": "/opt/kube", "mpi-job-config": "/etc/mpi"}
    (config,) = (each["configMap"] for each in spec["volumes"] if "configMap" in each)
    modes = {each["path"]: each["mode"] for each in config["items"]}
    assert config["name"] == "j-config"
    assert modes == {"kubexec.sh": 0o555, "hostfile": 0o444, "discover_hosts.sh": 0o555}


def test_a_worker_waits_for_what_the_launcher_starts_in_it() -> None:
    made = pods.worker(job(), 1)
    assert made["metadata"]["name"] == "j-worker-1"
    assert made["metadata"]["labels"]["training.kubeflow.org/replica-index"] == "1"
    container = made["spec"]["containers"][0]
    assert [*container["command"], *container["args"]] == ["sleep", "365d"]
    assert "env" not in container
    assert "serviceAccountName" not in made["spec"]


def test_a_worker_keeps_a_command_of_its_own() -> None:
    made = pods.worker(job(worker={"command": ["/usr/sbin/sshd", "-D"]}), 0)
    assert made["spec"]["containers"][0]["command"] == ["/usr/sbin/sshd", "-D"]


def test_hosts_are_the_workers_each_with_its_slots() -> None:
    data = parts.config_map(job(slotsPerWorker=4), ["j-worker-0"], "kubectl exec")["data"]
    assert data == {
        "hostfile": "j-worker-0 slots=4\nj-worker-1 slots=4\n",
        "discover_hosts.sh": "#!/bin/sh\necho j-worker-0:4",
        "kubexec.sh": "#!/bin/sh\nset -x\nPOD_NAME=$1\nshift\n"
        'kubectl exec ${POD_NAME} --container mpi -- /bin/sh -c "$*"',
    }


def test_a_launcher_with_gpus_is_a_host_too() -> None:
    made = job({"resources": {"limits": {"nvidia.com/gpu": "1"}}})
    data = parts.config_map(made, [], "kubectl exec")["data"]
    assert data["hostfile"].splitlines()[0] == "j-launcher slots=1"
    assert "NVIDIA_VISIBLE_DEVICES" not in env(pods.launcher(made))


def test_the_launcher_may_start_commands_in_its_workers_alone() -> None:
    account, role, binding = parts.rights(job())
    assert account["metadata"]["name"] == role["metadata"]["name"] == "j-launcher"
    assert role["rules"][1] == {
        "verbs": ["create"],
        "apiGroups": [""],
        "resources": ["pods/exec"],
        "resourceNames": ["j-worker-0", "j-worker-1"],
    }
    assert binding["subjects"][0]["name"] == "j-launcher"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda specs: specs.pop("Launcher"), "Master ReplicaSpec must be present"),
        (lambda specs: specs["Launcher"].update(replicas=2), "only 1 launcher replica"),
        (lambda specs: specs.update(Chief=specs["Worker"]), "MPIReplicaType is Chief"),
        (lambda specs: specs["Worker"].pop("template"), "containers definition expected in Worker"),
    ],
)
def test_what_the_operator_never_runs_is_named(change: Any, why: str) -> None:
    made = job()
    change(made["spec"]["mpiReplicaSpecs"])
    assert why in pods.problem(made)
    assert not pods.problem(job())
