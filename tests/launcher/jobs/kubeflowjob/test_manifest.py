"""Jobs from typed inputs: one golden manifest a kind, and what differs between roles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfp_pytorch.launcher.jobs.kubeflowjob.frameworks import FRAMEWORKS
from kfp_pytorch.launcher.jobs.registry import kind_of

Check = Callable[[str, dict[str, Any]], None]
GOLDEN = Path(__file__).parent / "golden"
TYPED: dict[str, dict[str, Any]] = {
    "TFJob": {
        "replicas": {"Chief": 1, "Worker": 2, "PS": {"replicas": 2, "memory": "8Gi"}},
        "memory": "16Gi",
        "gpus_per_node": 1,
        "command": ["python", "train.py"],
        "hyperparameters": {"epochs": 3},
    },
    "MPIJob": {
        "num_nodes": 2,
        "nproc_per_node": "4",
        "gpus_per_node": 4,
        "memory": "64Gi",
        "command": ["mpirun", "-np", "8", "python", "train.py"],
        "service_account": "reads-data",
    },
    "XGBoostJob": {"num_nodes": 3, "cpu": "4", "output_uri": "s3://bucket/runs"},
    "JAXJob": {"num_nodes": 2, "gpus_per_node": 8, "labels": {"team": "a"}},
    "PaddleJob": {"replicas": {"Master": 1, "Worker": 2}, "gpus_per_node": 1},
}


def build(**inputs: Any) -> dict[str, Any]:
    kind = kind_of("kubeflow_job", inputs)
    return kind.build(
        kind.parse_inputs(**{"image": "train:1"} | inputs),
        job_name="job-1",
        labels={"app": "x"},
        annotations={"a/b": "1"},
        owner=None,
    )


def replicas(job: dict[str, Any]) -> dict[str, Any]:
    return FRAMEWORKS[job["kind"]].roles.specs(job)


def container(job: dict[str, Any], role: str) -> dict[str, Any]:
    (found,) = replicas(job)[role]["template"]["spec"]["containers"]
    return dict(found)


@pytest.mark.parametrize("kind", FRAMEWORKS)
def test_a_kind_s_job_is_the_golden_one_and_valid(kind: str, check_crd: Check) -> None:
    made = build(kind=kind, **TYPED[kind])
    path = GOLDEN / f"{kind.lower()}.yaml"
    assert made == yaml.safe_load(path.read_text())
    check_crd(FRAMEWORKS[kind].resource.plural, made)


@pytest.mark.parametrize(
    ("kind", "roles"),
    [
        ("TFJob", {"Worker": 3}),
        ("MPIJob", {"Launcher": 1, "Worker": 3}),
        ("XGBoostJob", {"Master": 1, "Worker": 2}),
        ("JAXJob", {"Worker": 3}),
        ("PaddleJob", {"Worker": 3}),
    ],
)
def test_num_nodes_alone_makes_the_pods_that_train(kind: str, roles: dict[str, int]) -> None:
    made = build(kind=kind, num_nodes=3)
    assert {role: spec["replicas"] for role, spec in replicas(made).items()} == roles
    of_kind = kind_of("kubeflow_job", {"kind": kind})
    assert of_kind.parse_inputs(kind=kind, image="i", num_nodes=3).num_nodes == 3
    assert of_kind.expected_pods(made) == sum(roles.values())


def test_a_lone_xgboost_job_is_a_master() -> None:
    assert list(replicas(build(kind="XGBoostJob"))) == ["Master"]


def test_what_open_mpi_5_reads_is_the_inputs_own_where_it_sets_it() -> None:
    made = build(kind="MPIJob", num_nodes=2, env={"PRTE_MCA_plm_ssh_agent": "mine"})
    env = {each["name"]: each["value"] for each in container(made, "Launcher")["env"]}
    assert env["PRTE_MCA_plm_ssh_agent"] == "mine"
    assert env["PRTE_MCA_prte_default_hostfile"] == "/etc/mpi/hostfile"


def test_an_mpi_launcher_starts_and_its_workers_wait() -> None:
    made = build(kind="MPIJob", **TYPED["MPIJob"])
    launcher, worker = container(made, "Launcher"), container(made, "Worker")
    assert launcher["command"][0] == "mpirun"
    assert {"command", "args"} & worker.keys() == set()
    assert "resources" not in launcher
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == "4"
    accounts = {
        role: spec["template"]["spec"].get("serviceAccountName")
        for role, spec in replicas(made).items()
    }
    assert accounts == {"Launcher": None, "Worker": "reads-data"}


def test_roles_that_do_not_train_get_no_accelerators_unless_they_ask() -> None:
    task = {"resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "8"}}}
    roles: dict[str, Any] = {"Worker": 1, "PS": 1, "Evaluator": {"gpus_per_node": 1}}
    made = build(kind="TFJob", replicas=roles, task_config=task)
    limits = {role: container(made, role)["resources"]["limits"] for role in roles}
    assert limits == {
        "Worker": {"nvidia.com/gpu": "2", "cpu": "8"},
        "PS": {"cpu": "8"},
        "Evaluator": {"nvidia.com/gpu": "1", "cpu": "8"},
    }


def test_a_role_may_have_its_own_program() -> None:
    roles = {"Worker": 1, "Evaluator": {"command": "python evaluate.py", "args": ["--a b", 2]}}
    made = build(kind="TFJob", command="python train.py", replicas=roles)
    assert container(made, "Worker")["command"] == ["python", "train.py"]
    assert container(made, "Evaluator")["command"] == ["python", "evaluate.py"]
    assert container(made, "Evaluator")["args"] == ["--a b", "2"]


@pytest.mark.parametrize(
    ("kind", "inputs", "suffix"),
    [
        ("TFJob", {"replicas": {"Worker": 1, "Evaluator": 1}}, "-evaluator-0"),
        ("TFJob", {"num_nodes": 200}, "-worker-199"),
        ("MPIJob", {"num_nodes": 1}, "-worker-0"),
        ("XGBoostJob", {}, "-master-0"),
    ],
)
def test_a_job_s_name_leaves_room_for_its_longest_pod(
    kind: str, inputs: dict[str, Any], suffix: str
) -> None:
    of_kind = kind_of("kubeflow_job", {"kind": kind})
    assert of_kind.longest_suffix(of_kind.parse_inputs(kind=kind, image="i", **inputs)) == suffix


def test_pods_of_a_job_have_the_operator_s_names_and_an_order() -> None:
    for kind, names in {
        "TFJob": ["chief-0", "worker-0", "worker-1", "ps-0", "ps-1"],
        "MPIJob": ["launcher", "worker-0", "worker-1"],
        "XGBoostJob": ["master-0", "worker-0", "worker-1"],
        "JAXJob": ["worker-0", "worker-1"],
        "PaddleJob": ["master-0", "worker-0", "worker-1"],
    }.items():
        made, of_kind = build(kind=kind, **TYPED[kind]), kind_of("kubeflow_job", {"kind": kind})
        found = [of_kind.node_name(made, node) for node in range(of_kind.num_nodes(made))]
        assert found == [f"job-1-{name}" for name in names]
        assert of_kind.first_pod(made, []) == found[0]
