"""`--cpu`: what of a pipeline asks for GPUs, and how many processes are left."""

from __future__ import annotations

import pytest

from kfp_pytorch.cli.packages import find
from kfp_pytorch.cli.packages.checks import job_inputs
from kfp_pytorch.cli.packages.known_tasks import known_tasks
from kfp_pytorch.cli.packages.without_gpus import changes, without_gpus

HEAD = """
from kfp import dsl
from kfp_pytorch.components import kserve_deploy, pytorch_job


@dsl.pipeline(name="mine")
def mine(gpus: int = 4):
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
            "pytorch_job(image='i').set_accelerator_type('nvidia.com/gpu')"
            ".set_accelerator_limit(2)",
            "2",
            "1",
        ),
        ("pytorch_job(image='i', gpus_per_node=1, node_selector={'a': 'b'})", "1", "1"),
    ],
)
def test_a_job_gets_no_gpus_and_no_process_for_each(package, body, before, processes):
    given = package(body)
    (task,) = known_tasks(given, {})
    assert job_inputs(task).nproc_per_node == before
    (task,) = known_tasks(without_gpus(given), {})
    inputs = job_inputs(task)
    assert (inputs.gpus, inputs.nproc_per_node) == (0, processes)
    assert inputs.node_selector == {}
    (line,) = changes(given, {})
    assert line.startswith("task pytorch-job trains on the CPU, without its ")
    assert f"1 × {processes} processes in place of 1 × {before}." in line


def test_what_asks_for_no_gpus_stays_as_it_is(package):
    given = package("pytorch_job(image='i', nproc_per_node='2', num_nodes=2)")
    assert without_gpus(given) == given
    assert changes(given, {}) == []


def test_a_predictor_gets_no_gpus_either(package):
    given = package(
        "job = pytorch_job(image='i', gpus_per_node=gpus)\n"
        "    kserve_deploy(model=job.outputs['model'], service_name='m', gpus=1)"
    )
    tasks = {task.function: task for task in known_tasks(without_gpus(given), {"gpus": 2})}
    assert tasks["kserve_deploy"].inputs["gpus"] == 0
    assert changes(given, {"gpus": 2})[0].endswith("1 × 1 processes in place of 1 × 2.")
