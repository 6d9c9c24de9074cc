"""How large a package's steps and the Workflow of its run are, in each form of the launcher.

    python -m benchmarks.package

Figures in bytes, for each form: container_bytes_max (the largest step's container),
workflow_bytes_NAME of each shipped pipeline, and workflow_bytes_sweep (the Workflow at the end of
its run).
"""

import json

from kfp import dsl

from benchmarks.figures import parser, show
from kfp_pytorch.client.packages import find, workflow
from kfp_pytorch.components import forms, kserve_deploy, kserve_predict, metric_gate, pytorch_job
from kfp_pytorch.launcher.constants import LAUNCHER_IMAGE

FORMS = ("configmap", f"image=registry.example.com/kfp-pytorch/{LAUNCHER_IMAGE}", "package")
TRIALS = 8
SHIPPED = ("train_and_serve", "canary_rollout", "data_parallel_sweep", "elastic_train", "fine_tune")
LIMITS = {
    "container_bytes_max": 3072,
    "workflow_bytes_train_and_serve": 500_000,
    # Half of what Kubernetes stores.
    "workflow_bytes_canary_rollout": 524_288,
    "workflow_bytes_data_parallel_sweep": 524_288,
    "workflow_bytes_elastic_train": 524_288,
    "workflow_bytes_fine_tune": 524_288,
    "workflow_bytes_sweep": 700_000,
}


@dsl.pipeline(name="sweep")
def sweep(image: str = "registry.example.com/kfp-pytorch-training:1"):
    """Trains, gates, deploys and asks several models, one beside the other."""
    for trial in range(TRIALS):
        job = pytorch_job(image=image, hyperparameters={"lr": 0.1 / (trial + 1)}, num_nodes=2)
        gate = metric_gate(metrics=job.outputs["metrics"], minimum=0.9)
        service = kserve_deploy(model=job.outputs["model"], service_name=f"trial-{trial}").after(
            gate
        )
        kserve_predict(url=service.outputs["cluster_url"], model=job.outputs["model"])


def main() -> None:
    parser("benchmarks.package", __doc__).parse_args()
    shipped = [find.find_one(name) for name in SHIPPED]
    many = find.compile_pipeline("sweep", sweep)
    for launcher in FORMS:
        form = launcher.partition("=")[0]
        specs = [forms.with_launcher(package.spec, launcher) for package in shipped]
        values = {"container_bytes_max": max(map(_largest, specs))}
        for name, spec, package in zip(SHIPPED, specs, shipped, strict=True):
            values[f"workflow_bytes_{name}"] = workflow.estimate(spec, package.platform).stored
        trials = workflow.estimate(forms.with_launcher(many.spec, launcher), many.platform)
        values["workflow_bytes_sweep"] = trials.stored
        for figure, value in values.items():
            against = f"{form}; limit {LIMITS[figure]:,}"
            if figure == "workflow_bytes_sweep":
                against += f"; {TRIALS} times 4 steps, {trials.whole:,} before compression"
            show(figure, value, "bytes", against)


def _largest(spec: dict) -> int:
    containers = (each["container"] for each in spec["deploymentSpec"]["executors"].values())
    return max(len(json.dumps(each, separators=(",", ":")).encode()) for each in containers)


if __name__ == "__main__":
    main()
