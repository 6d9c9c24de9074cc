"""Pipelines whose steps and ranks write something that tells them apart."""

from kfp import dsl

from kfp_pytorch.components import pytorch_job

component = dsl.component(base_image="python", install_kfp_package=False)

TALK = """
import os
print("I am node", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
print(os.environ["KFP_PYTORCH_OUTPUT"])
"""

# Each node goes on when the file of its number is there.
WAIT = """
import os, pathlib, sys, time
node = os.environ["RANK"]
print("node", node, "waits", flush=True)
while not pathlib.Path(sys.argv[1], node).exists():
    time.sleep(0.02)
print("node", node, "goes on", flush=True)
"""

TRAIN = """
import os, pathlib, sys, time
folder = pathlib.Path(os.environ["KFP_PYTORCH_OUTPUT"]) / "checkpoints"
folder.mkdir(parents=True)
if sys.argv[1] == "--save=1":
    (folder / "latest").write_text("step-00000001")
print("asleep", flush=True)
time.sleep(300)
"""


@component
def train(lr: float, worst: float = 0.2):
    print(f"lr is {lr}")
    if lr >= worst:
        raise ValueError(f"{lr} is too large")


@dsl.pipeline(name="telling-apart")
def telling_apart(worst: float = 0.2):
    job = pytorch_job(image="any", command=["python", "-c", TALK], num_nodes=2, name="talk")
    with dsl.ParallelFor([0.1, 0.2]) as lr:
        train(lr=lr, worst=worst).after(job).set_display_name("one rate")


@dsl.pipeline(name="waiting")
def waiting(folder: str):
    pytorch_job(
        image="any", command=["python", "-c", WAIT], args=[folder], num_nodes=2, name="wait"
    )


@dsl.pipeline(name="saving")
def saving(save: int = 1):
    pytorch_job(image="any", command=["python", "-c", TRAIN], hyperparameters={"save": save})


@dsl.pipeline(name="processes")
def processes():
    pytorch_job(
        image="any",
        command=["torchrun", "--tee", "3", "--no-python", "echo", "I am one of them"],
        nproc_per_node="2",
    )
