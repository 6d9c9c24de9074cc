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
import torch.distributed.checkpoint as dcp

from kfp_pytorch.training.parallel import StepOptions, Trainable, build
from kfp_pytorch.training.plan import ParallelPlan
from kfp_pytorch.training.text import ByteText, TextBatches, standard_library
from kfp_pytorch.training.transformer import preset

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
    """The global loss and the gradients' norm of some steps, and a loss on what comes then."""
    seen: dict[str, list[float]] = {"loss": [], "norm": []}
    for batch in itertools.islice(batches, steps):
        loss = trainable.forward_backward(batch)
        seen["norm"].append(trainable.clip_and_step().item())
        seen["loss"].append(trainable.global_loss(loss).item())
    held_out = trainable.evaluate(next(batches))
    seen["evaluation"] = [trainable.global_loss(held_out).item()]
    return seen


def save(trainable: Trainable, batches: TextBatches, folder: Path) -> None:
    """What a training loop would save, as far as model and data go."""
    dcp.save({"train": trainable, "batches": batches}, checkpoint_id=str(folder))


def load(trainable: Trainable, batches: TextBatches, folder: Path) -> None:
    dcp.load({"train": trainable, "batches": batches}, checkpoint_id=str(folder))


def run_cases(rank: int, world: int, folder: Path, cases: list[dict[str, Any]]) -> None:
    """Train each case; one that has `saved` goes on from the checkpoint of that name."""
    results = {}
    for case in cases:
        plan = ParallelPlan.parse(case["plan"], world)
        # Another seed: what is loaded must not be what is there already.
        trainable, batches = make(plan, rank, 7 if "saved" in case else 0, **case["options"])
        if "saved" in case:
            load(trainable, batches, folder / case["saved"])
        results[case["name"]] = train(trainable, batches)
        if case.get("save"):
            save(trainable, batches, folder / case["save"])
        (folder / f"{rank}.json").write_text(json.dumps(results))


def main(rank: int, world: int, port: int, folder: Path, cases: list[dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.TCPStore("127.0.0.1", port, world, rank == 0)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60)
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
