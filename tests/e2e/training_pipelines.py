"""Pipelines whose job trains for real."""

from typing import Any

from kfp import dsl

from kfp_pytorch.components import pytorch_job

# Trains until the first checkpoint is there, and dies; from then on it trains to the end.
DIES_ONCE = """
import os, pathlib, subprocess, sys, time
folder = pathlib.Path(os.environ["KFP_PYTORCH_OUTPUT"])
first = not (folder / "died").exists()
process = subprocess.Popen([sys.executable, "-m", "kfp_pytorch.training", *sys.argv[1:]])
while first and process.poll() is None:
    time.sleep(0.01)
    if (folder / "checkpoints" / "latest").exists():
        (folder / "died").touch()
        process.terminate()
        process.wait()
        sys.exit("the first attempt dies")
sys.exit(process.wait())
"""


@dsl.pipeline(name="trained")
def trained(epochs: int = 8, args: list[Any] = [], output_uri: str = "pvc://kfp-pytorch"):  # noqa: B006
    pytorch_job(
        name="trained",
        image="train",
        command=["python", "-m", "kfp_pytorch.training"],
        args=args,
        hyperparameters={"epochs": epochs},
        output_uri=output_uri,
        key=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    )


@dsl.pipeline(name="dying")
def dying(epochs: int = 8):
    pytorch_job(
        name="dying",
        image="train",
        command=["python", "-c", DIES_ONCE],
        hyperparameters={"epochs": epochs},
        restart_policy="Never",
        key=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    ).set_retry(2)
