"""`--cpu`: what of a pipeline asks for GPUs, and how many processes are left."""

from __future__ import annotations

import pytest

from kfp_pytorch.client.packages import find
from kfp_pytorch.client.packages.checks import job_inputs, job_of
from kfp_pytorch.client.packages.known_tasks import known_tasks
from kfp_pytorch.client.packages.without_gpus import changed, changes, steps
from kfp_pytorch.local.kfp.without_gpus import pod_spec

HEAD = """
from kfp import dsl, kubernetes
from kfp_pytorch.components import kserve_deploy, kubeflow_job, pytorch_job

PATCH = {"spec": {
    "runtimeClassName": "nvidia",
    "nodeSelector": {"gpu": "a100"},
    "containers": [{
        "name": "pytorch",
        "workingDir": "/tmp",
        "resources": {"limits": {"nvidia.com/gpu": 4, "rdma/ib": "1", "memory": "1Gi"}},
    }],
}}


@dsl.component(base_image="python")
def count() -> int:
    return 4


@dsl.pipeline(name="mine")
def mine(gpus: int = 4, kind: str = 'amd.com/gpu', patch: dict = PATCH):
    """


@pytest.fixture
def package(tmp_path):
    def made(body):
        (tmp_path / "mine.py").write_text(HEAD + body)
        return find.find_one(f"{tmp_path}/mine.py:mine")

    return made


@pytest.mark.parametrize(
    ("body", "before", "processes"),
    [
        ("pytorch_job(image='i', gpus_per_node=8)", "8", "1"),
        ("pytorch_job(image='i', gpus_per_node=8, nproc_per_node='8')", "8", "1"),
        ("pytorch_job(image='i', gpus_per_node=8, nproc_per_node='gpu')", "gpu", "1"),
        ("pytorch_job(image='i', gpus_per_node=8, nproc_per_node='2')", "2", "2"),
        ("pytorch_job(image='i', gpus_per_node=gpus)", "4", "1"),
        (
            "pytorch_job(image='i', placement={'gpus': 8, 'gpu_products': ['A'], 'same': 'rack'})",
            "8",
            "1",
        ),
        ("pytorch_job(image='i', placement={'mig': '3g.20gb'})", "1", "1"),
        (
            "pytorch_job(image='i').set_accelerator_type('amd.com/gpu').set_accelerator_limit(2)",
            "2",
            "1",
        ),
        (
            "pytorch_job(image='i').set_accelerator_type(kind).set_accelerator_limit(gpus)",
            "4",
            "1",
        ),
        ("pytorch_job(image='i', gpus_per_node=1, node_selector={'a': 'b'})", "1", "1"),
        ("pytorch_job(image='i', pod_template_patch=PATCH, nproc_per_node='4')", "4", "1"),
        ("pytorch_job(image='i', pod_template_patch=patch)", "1", "1"),
        (
            "task = pytorch_job(image='i', gpus_per_node=1)\n"
            "    kubernetes.add_node_selector(task, 'gpu', 'a100')",
            "1",
            "1",
        ),
    ],
)
def test_a_job_gets_no_gpus_and_no_process_for_each(package, body, before, processes):
    (task,) = known_tasks(package(body), {})
    assert job_inputs(task).nproc_per_node == before
    inputs = job_inputs(changed(task))
    assert (inputs.gpus, inputs.nproc_per_node) == (0, processes)
    pod = job_of(changed(task))["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    assert not {"nodeSelector", "affinity", "runtimeClassName"} & pod.keys()
    (container,) = pod["containers"]
    resources = container.get("resources", {})
    assert {"name": "ACCELERATE_USE_CPU", "value": "true"} in container["env"]
    assert not any("/" in name for part in resources.values() for name in part)
    if "PATCH" in body:
        assert (container["workingDir"], resources["limits"]) == ("/tmp", {"memory": "1Gi"})
    (line,) = changes([task])
    assert line.startswith("task pytorch-job trains on the CPU, without its ")
    changed_to = f": 1 × {processes} processes in place of 1 × {before}"
    assert line.endswith(f" a node{changed_to if before != processes else ''}.")
    assert "its 1 GPUs" not in line


MPI = "kubeflow_job(kind='MPIJob', image='i', command=['mpirun'], "
POD = "{'metadata': {}, 'spec': {'containers': [{'name': 'mpi', 'image': 'i', %s}]}}"
WHOLE = (
    "{'apiVersion': 'kubeflow.org/v1', 'kind': 'MPIJob', 'metadata': {}, 'spec': {"
    f"'slotsPerWorker': 4, 'mpiReplicaSpecs': {{'Launcher': {{'template': {POD % ''}}}, "
    "'Worker': {'replicas': 2, 'template': "
    + POD % "'resources': {'limits': {'nvidia.com/gpu': 4}}"
    + "}}}}"
)


@pytest.mark.parametrize(
    "body",
    [
        MPI + "num_nodes=2, gpus_per_node=4)",
        MPI + "num_nodes=2, gpus_per_node=4, nproc_per_node='4')",
        MPI + "replicas={'Launcher': 1, 'Worker': {'replicas': 2, 'gpus_per_node': 4}}, "
        "nproc_per_node='4')",
        f"kubeflow_job(manifest={WHOLE})",
    ],
)
def test_an_mpijob_keeps_the_processes_that_its_command_starts(package, body):
    (task,) = known_tasks(package(body), {})
    job = job_of(changed(task))
    assert job["spec"]["slotsPerWorker"] == 4
    for role in job["spec"]["mpiReplicaSpecs"].values():
        (container,) = role["template"]["spec"]["containers"]
        assert "nvidia.com/gpu" not in container.get("resources", {}).get("limits", {})
    (line,) = changes([task])
    assert line == "task kubeflow-job trains on the CPU, without its 4 GPUs a node."


def test_what_asks_for_no_gpus_stays_as_it_is(package):
    (task,) = known_tasks(package("pytorch_job(image='i', nproc_per_node='2', num_nodes=2)"), {})
    assert changed(task) == task
    assert list(changes([task])) == []


def test_a_predictor_gets_no_gpus_either(package):
    given = package(
        "job = pytorch_job(image='i', gpus_per_node=gpus)\n"
        "    kserve_deploy(model=job.outputs['model'], service_name='m', gpus=1)"
    )
    tasks = {task.function: task for task in known_tasks(given, {"gpus": 2})}
    assert changed(tasks["kserve_deploy"]).inputs["gpus"] == 0
    of_job, of_server = sorted(changes([*tasks.values()]), reverse=True)
    assert of_job.endswith("1 × 1 processes in place of 1 × 2.")
    assert of_server == "task kserve-deploy deploys a model server without GPUs."


def test_only_the_steps_of_this_project_are_changed(package):
    given = package("pytorch_job(image='i', gpus_per_node=count().output)")
    assert steps(given) == ["exec-pytorch-job"]


def test_a_runtimes_pod_keeps_all_but_gpus_and_their_nodes():
    container = {"name": "kserve-container", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"supportedModelFormats": [], "nodeSelector": {"a": "b"}, "containers": [container]}
    without = {"name": "kserve-container", "resources": {"limits": {}}}
    assert pod_spec(spec) == {"supportedModelFormats": [], "containers": [without]}
