"""What a rank of the parallel tests does. Run by `runpy` with RANK, WORLD, PORT, FOLDER and CASES.

One process group trains each case in turn, and each rank writes what it saw. A case is a name, a
plan and the options of a step.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from kfp_pytorch.training.checkpoint import catalog, job_state, tensor_files
from kfp_pytorch.training.language.text import ByteText, TextBatches, standard_library
from kfp_pytorch.training.language.trainable import StepOptions, Trainable, build
from kfp_pytorch.training.language.transformer import preset
from kfp_pytorch.training.parallel.plan import ParallelPlan
from kfp_pytorch.training.parallel.process_group import World
from kfp_pytorch.training.storage.job_folder import open_folder
from kfp_pytorch.training.telemetry.curves import History
from kfp_pytorch.training.telemetry.metrics import LossMeter

CPU = torch.device("cpu")
MODEL = dataclasses.replace(preset("tiny"), layers=2, seq_len=32)
GLOBAL_BATCH, STEPS = 16, 4
OPTIONS: dict[str, Any] = {"bf16": False, "learning_rate": 3e-3, "clip_norm": 0.3}


def make(
    plan: ParallelPlan, rank: int, seed: int = 0, **options: Any
) -> tuple[Trainable, TextBatches]:
    """The model and this rank's data."""
    trainable = build(MODEL, plan, CPU, StepOptions(**OPTIONS, seed=seed, **options))
    text = ByteText.read(standard_library()[:3])
    each = GLOBAL_BATCH // plan.data_ranks
    batches = TextBatches(text, MODEL.seq_len, each, plan.data_rank(rank), plan.data_ranks)
    return trainable, batches


def train(trainable: Trainable, batches: TextBatches, steps: int = STEPS) -> dict[str, list[float]]:
    """The global loss and the gradients' norm of some steps, and a loss on the next batch."""
    seen: dict[str, list[float]] = {"loss": [], "norm": []}
    for batch in itertools.islice(batches, steps):
        loss = trainable.forward_backward(batch)
        seen["norm"].append(trainable.clip_and_step().item())
        seen["loss"].append(global_loss(trainable.plan, loss))
    held_out = trainable.evaluate(next(batches))
    seen["evaluation"] = [global_loss(trainable.plan, held_out)]
    return seen


def global_loss(plan: ParallelPlan, loss: torch.Tensor) -> float:
    """The mean loss over the global batch, of what each rank has."""
    if plan.world_size == 1:
        return loss.item()
    total = loss.detach().clone()
    dist.all_reduce(total)
    # Of a pipeline only the last stage has a loss; tensor-parallel ranks have the same one.
    return total.item() / (plan.data_ranks * plan.tp)


def carried(trainable: Trainable, batches: TextBatches, rank: int, steps: int) -> tuple[Any, World]:
    """What a training loop keeps, and the rank that keeps it."""
    world = World(rank, rank, trainable.plan.world_size, CPU)
    meter, progress = LossMeter(world), job_state.Progress(step=steps)
    state = job_state.State(
        trainable.model, trainable.optimizer, meter, progress, History(), batches
    )
    return state, world


def save(trainable: Trainable, batches: TextBatches, rank: int, uri: str) -> None:
    """Writes a checkpoint; all ranks do so together."""
    state, world = carried(trainable, batches, rank, STEPS)
    folder, plain = open_folder(uri), job_state.plain(state, job_state.position(state), [0.0, 0.0])

    def commit(files: tensor_files.Files) -> None:
        about = {"carried": plain, "world_size": world.size}
        catalog.complete(folder, STEPS, about, files)

    tensors, group = job_state.tensors(state, world), dist.group.WORLD
    tensor_files.write(folder, catalog.path_of(STEPS), tensors, group, commit)


def load(trainable: Trainable, batches: TextBatches, rank: int, uri: str) -> None:
    """Goes on from a checkpoint; all ranks do so together."""
    state, world = carried(trainable, batches, rank, 0)
    found = catalog.newest(open_folder(uri), {})
    assert found is not None
    group = dist.group.WORLD if world.size > 1 else None
    job_state.restore(state, found, world, 0, group)
    assert state.progress.step == STEPS


def run_cases(rank: int, world: int, folder: Path, cases: list[dict[str, Any]]) -> None:
    """Train each case; one that has `saved` resumes from the checkpoint of that name."""
    results = {}
    for case in cases:
        plan = ParallelPlan.parse(case["plan"], world)
        # Another seed: what is loaded must not be what is there already.
        trainable, batches = make(plan, rank, 7 if "saved" in case else 0, **case["options"])
        if "saved" in case:
            load(trainable, batches, rank, str(folder / case["saved"]))
        results[case["name"]] = train(trainable, batches)
        if case.get("save"):
            save(trainable, batches, rank, str(folder / case["save"]))
        (folder / f"{rank}.json").write_text(json.dumps(results))


def main(rank: int, world: int, port: int, folder: Path, cases: list[dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.TCPStore("127.0.0.1", port, world, rank == 0)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=300)
    )
    run_cases(rank, world, folder, cases)
    dist.destroy_process_group()


if __name__ == "__main__":
    given = globals()
    try:
        main(given["RANK"], given["WORLD"], given["PORT"], Path(given["FOLDER"]), given["CASES"])
    except BaseException:
        # The others wait for this rank: whoever started them ends them.
        (Path(given["FOLDER"]) / f"{given['RANK']}.error").write_text(traceback.format_exc())
        sys.stdout.flush()
        os._exit(1)
