"""Components that run in every process of a job."""

from kfp import dsl
from kfp.dsl import Input, Metrics, Model, Output

from kfp_pytorch.components import distribute


@dsl.component(base_image="torch")
def train(steps: int, fail_rank: int, metrics: Output[Metrics], model: Output[Model]) -> float:
    import os

    import torch
    from torch import distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == fail_rank:
        raise ValueError(f"rank {rank} of {os.environ['WORLD_SIZE']} is no good: {{$HOME}} `x`")
    total = torch.tensor([float(rank)])
    for _ in range(steps):
        dist.all_reduce(total)
    if rank == 0:
        torch.save({"total": total}, model.path)
        metrics.log_metric("total", total.item())
        model.metadata["framework"] = "torch"
    return total.item()


@dsl.component(base_image="torch")
def check(model: Input[Model], total: float) -> str:
    import os

    import torch

    loaded = torch.load(model.path, weights_only=True)["total"].item()
    assert loaded == total, (loaded, total)
    return f"{loaded} in {os.environ['WORLD_SIZE']} at {model.metadata['framework']}"


@dsl.component(base_image="python", install_kfp_package=False)
def told(total: float, text: str, metrics: Input[Metrics]):
    print(f"told: {total}, {text}, {metrics.metadata['total']}")


train_on_all = distribute(train, nodes=2, procs_per_node=2)
check_on_one = distribute(check, nodes=1)


@dsl.pipeline(name="distributed")
def distributed(fail_rank: int = -1):
    trained = train_on_all(steps=1, fail_rank=fail_rank)
    total = trained.outputs["Output"]
    checked = check_on_one(model=trained.outputs["model"], total=total)
    told(total=total, text=checked.output, metrics=trained.outputs["metrics"])
