"""Pipelines with a training program of a few lines, which any Python image runs."""

from kfp import dsl

from kfp_pytorch.components import kserve_deploy, metric_gate, pytorch_job

IMAGE = "python:3.12-slim"

TRAIN = """
import json, os, sys
log = os.environ.get("KFP_PYTORCH_TERMINATION_LOG", "/dev/termination-log")
accuracy = float(sys.argv[1].partition("=")[2])
print(f"accuracy={accuracy}")
with open(log, "w") as file:
    json.dump({"version": 1, "status": "succeeded", "metrics": {"accuracy": accuracy},
               "world_size": int(os.environ["WORLD_SIZE"])}, file)
"""

RAISE = """
raise ValueError("the script's own words")
"""

# Fails until it finds what an earlier attempt left in the job's folder.
ONCE = """
import os, pathlib, sys
marker = pathlib.Path(os.environ["KFP_PYTORCH_OUTPUT"]) / "marker"
if not marker.exists():
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    sys.exit("the first attempt fails")
"""


@dsl.pipeline(name="gated")
def gated(accuracy: float = 0.5, minimum: float = 0.9, nodes: int = 2):
    job = pytorch_job(
        name="tiny",
        image=IMAGE,
        command=["python", "-c", TRAIN],
        hyperparameters={"accuracy": accuracy},
        num_nodes=nodes,
        key=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    )
    metric_gate(metrics=job.outputs["metrics"], metric="accuracy", minimum=minimum)


@dsl.pipeline(name="raising")
def raising():
    job = pytorch_job(
        name="raising", image=IMAGE, command=["python", "-c", RAISE], restart_policy="Never"
    )
    metric_gate(metrics=job.outputs["metrics"], minimum=0.5)


@dsl.pipeline(name="raising-again")
def raising_again():
    pytorch_job(name="raising-again", image=IMAGE, command=["python", "-c", RAISE])


@dsl.pipeline(name="silent")
def silent():
    job = pytorch_job(name="silent", image=IMAGE, command=["python", "-c", "print('done')"])
    kserve_deploy(model=job.outputs["model"], service_name="silent")


@dsl.pipeline(name="retried")
def retried():
    pytorch_job(
        name="retried",
        image=IMAGE,
        command=["python", "-c", ONCE],
        restart_policy="Never",
        cleanup="never",
        key=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    ).set_retry(2)


@dsl.pipeline(name="elsewhere")
def elsewhere(output_uri: str = "pvc://nonsuch"):
    pytorch_job(image=IMAGE, command=["python", "-c", "pass"], output_uri=output_uri)


@dsl.pipeline(name="commanded")
def commanded():
    pytorch_job(name="commanded", image=IMAGE, command=["nonsuch"], start_timeout=60)
