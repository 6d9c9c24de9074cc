"""Components that run in every process of a job."""

from typing import List, NamedTuple, Optional  # noqa: UP035

from kfp import dsl
from kfp.dsl import Dataset, Input, Metrics, Model, Output

from kfp_pytorch.components import distribute


@dsl.component(base_image="torch")
def train(steps: int, fail_rank: int, metrics: Output[Metrics], model: Output[Model]) -> float:
    import os
    from pathlib import Path

    import torch
    from torch import distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with Path(os.environ["KFP_PYTORCH_OUTPUT"], "began").open("a") as file:
        file.write(f"{rank}\n")
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


train_on_all = distribute(train, nodes=2, procs_per_node=2, key="distributed")
train_job_on_all = distribute(
    train, nodes=2, procs_per_node=2, kind="train_job", key="as_train_job"
)
check_on_one = distribute(check, nodes=1)


@dsl.pipeline(name="distributed")
def distributed(fail_rank: int = -1):
    trained = train_on_all(steps=1, fail_rank=fail_rank)
    total = trained.outputs["Output"]
    checked = check_on_one(model=trained.outputs["model"], total=total)
    told(total=total, text=checked.output, metrics=trained.outputs["metrics"])


@dsl.pipeline(name="as-train-job")
def as_train_job(fail_rank: int = -1):
    train_job_on_all(steps=1, fail_rank=fail_rank)


@dsl.component(base_image="torch", packages_to_install=["s3fs"])
def fit(
    steps: int, metrics: Output[Metrics], model: Output[Model], shards: Output[Dataset]
) -> NamedTuple("Fitted", total=float, sizes=dict):
    from pathlib import Path

    import torch
    from torch import distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([float(dist.get_rank())])
    for _ in range(steps):
        dist.all_reduce(total)
    torch.save({"total": total}, model.path)
    Path(shards.path, "deep").mkdir(parents=True)
    for name in ("a.txt", "deep/b ä.txt"):
        Path(shards.path, name).write_text(f"{name} of rank {dist.get_rank()}")
    metrics.log_metric("total", total.item())
    model.metadata["framework"] = "torch"
    return (total.item(), {"total": [total.item()], "it's": {"processes": dist.get_world_size()}})


@dsl.component(base_image="torch", packages_to_install=["s3fs"])
def read(model: Input[Model], shards: Input[Dataset], sizes: dict) -> str:
    from pathlib import Path

    import torch

    total = torch.load(model.path, weights_only=True)["total"].item()
    texts = sorted(each.read_text() for each in Path(shards.path).rglob("*.txt"))
    return f"{total} {texts} {sizes} {model.uri.partition('/fit-')[0]}"


@dsl.component(base_image="python", install_kfp_package=False)
def say(text: str, metrics: Optional[Input[Metrics]] = None):  # noqa: UP045
    print(f"said: {text} {metrics and metrics.metadata['total']}")


IN_BUCKET = {"output_uri": "s3://kfp-pytorch/runs", "output_secret": "models-s3"}
fit_on_all = distribute(fit, nodes=2, procs_per_node=2, **IN_BUCKET)
read_by_two = distribute(read, nodes=1, procs_per_node=2, **IN_BUCKET)


@dsl.pipeline(name="in-a-bucket")
def in_a_bucket():
    fitted = fit_on_all(steps=1)
    got = read_by_two(
        model=fitted.outputs["model"],
        shards=fitted.outputs["shards"],
        sizes=fitted.outputs["sizes"],
    )
    say(text=got.output, metrics=fitted.outputs["metrics"])


@dsl.component(base_image="torch")
def square(number: int) -> int:
    return number * number


@dsl.component(base_image="torch")
def add(numbers: List[int], run: str, task: str) -> int:  # noqa: UP006
    print(f"added in {task} of {run}")
    return sum(numbers)


@dsl.component(base_image="torch")
def ended(status: dsl.PipelineTaskFinalStatus):
    print(f"ended: {status.state}")


square_on_one, square_on_two = distribute(square, nodes=1), distribute(square, nodes=2)
add_on_one, ended_on_one = distribute(add, nodes=1), distribute(ended, nodes=1)


@dsl.pipeline(name="control")
def control(numbers: List[int] = [1, 3]):  # noqa: B006, UP006
    with dsl.ExitHandler(ended_on_one()):
        with dsl.ParallelFor(numbers) as number:
            squared = square_on_one(number=number)
        added = add_on_one(
            numbers=dsl.Collected(squared.output),
            run=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
            task=dsl.PIPELINE_TASK_NAME_PLACEHOLDER,
        )
        with dsl.If(added.output == 10):
            again = square_on_two(number=added.output)
            square_on_one(number=again.output)
        with dsl.Else():
            square_on_one(number=-1)


@dsl.component(base_image="torch")
def flaky(data: Input[Dataset]) -> str:
    import os
    from pathlib import Path

    tried = Path(os.environ["KFP_PYTORCH_OUTPUT"], "tried")
    if not tried.exists():
        tried.touch()
        raise RuntimeError("not at the first try")
    return f"{Path(data.path).name}: {Path(data.path).read_text()} {os.environ['WORD']}"


flaky_on_one = distribute(flaky, nodes=1)


@dsl.pipeline(name="retried")
def retried(data: str):
    imported = dsl.importer(artifact_uri=data, artifact_class=Dataset)
    task = flaky_on_one(data=imported.output).set_retry(1).set_env_variable("WORD", "$(x) `ä`")
    say(text=task.output)
