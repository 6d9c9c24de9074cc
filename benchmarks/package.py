"""How large a package's steps and the Workflow of its run are, in each form of the launcher.

    python -m benchmarks.package

Figures in bytes, for each form: container_bytes_max (the largest step's container of a shipped
pipeline), workflow_bytes_NAME of each shipped pipeline, workflow_bytes_distribute_N of N
distributed components, and workflow_bytes_sweep (the Workflow at the end of its run).
"""

import json

from kfp import dsl
from kfp.dsl import Metrics, Model, Output

from benchmarks.figures import parser, show
from kfp_pytorch.client.packages import find, workflow
from kfp_pytorch.components import (
    distribute,
    forms,
    kserve_deploy,
    kserve_predict,
    metric_gate,
    pytorch_job,
)
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
    "workflow_bytes_distribute_1": 524_288,
    "workflow_bytes_distribute_4": 524_288,
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


@dsl.component(base_image="pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime")
def fit(rate: float, metrics: Output[Metrics], model: Output[Model]) -> float:
    import torch
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group()
    net = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    for _ in range(100):
        batch = torch.randn(32, 4)
        loss = ((net(batch) - batch.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save(net.module.state_dict(), model.path)
        metrics.log_metric("loss", loss.item())
    return loss.item()


def distributed(steps: int) -> find.Package:
    """Compile a pipeline of so many distributed components of 20 lines."""
    fit_on_all = distribute(fit, nodes=2, procs_per_node=2)

    @dsl.pipeline(name="distributed")
    def pipeline():
        for step in range(steps):
            fit_on_all(rate=0.1 / (step + 1))

    return find.compile_pipeline("distributed", pipeline)


def main() -> None:
    parser("benchmarks.package", __doc__).parse_args()
    shipped = [find.find_one(name) for name in SHIPPED]
    many = find.compile_pipeline("sweep", sweep)
    by_steps = {steps: distributed(steps) for steps in (1, 4)}
    for launcher in FORMS:
        form = launcher.partition("=")[0]
        specs = [forms.with_launcher(package.spec, launcher) for package in shipped]
        values = {"container_bytes_max": max(map(_largest, specs))}
        for name, spec, package in zip(SHIPPED, specs, shipped, strict=True):
            values[f"workflow_bytes_{name}"] = workflow.estimate(spec, package.platform).stored
        for steps, package in by_steps.items():
            spec = forms.with_launcher(package.spec, launcher)
            stored = workflow.estimate(spec, package.platform).stored
            values[f"workflow_bytes_distribute_{steps}"] = stored
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
