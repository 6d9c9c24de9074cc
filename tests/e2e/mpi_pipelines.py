"""Pipelines whose job is an MPIJob."""

from kfp import dsl

from kfp_pytorch.components import kubeflow_job

# Every rank adds its own number; rank 0 keeps the sum where the launcher finds it.
TRAIN = """
import json, os, pathlib, sys
from mpi4py import MPI
world = MPI.COMM_WORLD
failing = int(sys.argv[1])
if world.rank == failing:
    raise ValueError(f"rank {world.rank} of {world.size} is no good: $HOME `x`")
total = world.allreduce(world.rank)
print("rank", world.rank, "of", world.size, "in", os.environ["HOSTNAME"], flush=True)
if world.rank == 0:
    result = {"total": total, "ranks": world.size}
    folder = pathlib.Path(os.environ["KFP_PYTORCH_OUTPUT"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result))
"""
LAUNCH = """
import json, pathlib, subprocess, sys
from kfp_pytorch.training import script
ended = subprocess.run(["mpirun", "-np", "4", "python", "-m", "mpi4py", "-c", *sys.argv[1:]])
if ended.returncode:
    sys.exit(ended.returncode)
script.report(json.loads(pathlib.Path(script.folder(), "result.json").read_text()), 1)
"""


@dsl.pipeline(name="by-mpi")
def by_mpi(fail_rank: int = -1):
    kubeflow_job(
        kind="MPIJob",
        name="by-mpi",
        image="mpi",
        command=["python", "-c", LAUNCH, TRAIN],
        args=[fail_rank],
        num_nodes=2,
        nproc_per_node="2",
        restart_policy="Never",
        key=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    )


@dsl.pipeline(name="sleeps")
def sleeps():
    program = "import time; print('rank sleeps', flush=True); time.sleep(600)"
    kubeflow_job(
        kind="MPIJob",
        name="sleeps",
        image="mpi",
        command=["mpirun", "-np", "2", "python", "-c", program],
        num_nodes=2,
        nproc_per_node="1",
    )
