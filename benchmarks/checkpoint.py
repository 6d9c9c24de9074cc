"""What a checkpoint of 10 GB costs a job of 4 GPUs, and how long a job takes to go on from one.

    python -m benchmarks.checkpoint --gpus 4 --output FOLDER

A decoder-only transformer of 834 million parameters is sharded by FSDP2: its weights and AdamW's
state are 10 GB together. The memory that the state is copied to is made in a thread after the first
step. Figures, of the checkpoints after the first one but where it is named:

- checkpoint_first_stall_s, checkpoint_stall_s: how much longer the step took that a checkpoint fell
  into than its median, for the first checkpoint and for the worst of the others;
  checkpoint_save_call_s is a part of it.
- checkpoint_cost_s: how much longer that step and all others took while it was written.
- checkpoint_write_s: how long the thread wrote, while training went on.
- resume_loss_difference: the largest part by which the loss of a step after resuming differs from
  that of the same step of the job that was not interrupted.
- resume_to_first_step_s: from starting torchrun to the end of the first step after the checkpoint,
  imports, joining, reading and, with --compile, compiling included.

`--tiny` tries on CPUs that it runs; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path

from benchmarks.cards import card, synchronize, torchrun
from benchmarks.figures import parser, show
from kfp_pytorch.training.arguments.config import parse
from kfp_pytorch.training.checkpoint import catalog
from kfp_pytorch.training.faults.peer_watch import watched_peers
from kfp_pytorch.training.faults.stopping import StopRequest
from kfp_pytorch.training.language import loop, transformer
from kfp_pytorch.training.lifecycle import Start
from kfp_pytorch.training.parallel.process_group import joined
from kfp_pytorch.training.telemetry.metrics import mean_loss

SHAPE = transformer.TransformerConfig(
    vocab=32000, dim=1536, layers=24, heads=12, hidden=4608, seq_len=2048
)
TINY_SHAPE = transformer.TransformerConfig(layers=2, seq_len=16)
# While the steps in between are taken, all of a checkpoint is written.
WARM_UP, BETWEEN, SAVES = 10, 60, 5
COMPARED = 20
# More than are taken. The rate of learning follows from it, so that losses change.
STEPS = 500
Figure = tuple[str, float, str, str]
STARTED_ENV = "KFP_PYTORCH_BENCH_STARTED"


def main() -> None:
    options = parser("benchmarks.checkpoint", __doc__)
    options.add_argument("--gpus", type=int, default=4)
    options.add_argument("--output", type=Path, required=True, help="a folder with room for 40 GB")
    options.add_argument("--compile", choices=("on", "off"), default="off")
    options.add_argument("--tiny", action="store_true", help="only try out that it runs")
    options.add_argument("--rank", choices=("save", "resume"), help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.rank:
        run_rank(arguments)
        return
    shutil.rmtree(arguments.output, ignore_errors=True)
    done = {}
    for part in ("save", "resume"):
        command = ["-m", "benchmarks.checkpoint", *sys.argv[1:], "--rank", part]
        done[part] = torchrun(arguments.gpus, command, **{STARTED_ENV: str(time.time())})[-1]
        for figure in done[part]["figures"]:
            show(*figure)
    pairs = list(zip(done["save"]["losses"], done["resume"]["losses"], strict=True))
    difference = max(abs(ours / theirs - 1) for theirs, ours in pairs)
    against = f"{len(pairs)} steps, in which the loss went from {pairs[0][0]} to {pairs[-1][0]}"
    show("resume_loss_difference", difference, "ratio", against)


def run_rank(arguments: argparse.Namespace) -> None:
    # Under a preset's name, as the arguments know no others.
    transformer.PRESETS["tiny"] = TINY_SHAPE if arguments.tiny else SHAPE
    given = ["--model=lm-tiny", "--parallelism=fsdp2"]
    given += [f"--output={arguments.output / 'job'}", f"--compile={arguments.compile}"]
    given += ["--batch-size=2", f"--max-steps={STEPS}", "--epochs=1000", "--keep=1"]
    with joined(600) as world, watched_peers(world, lambda _rank: os._exit(1)):
        job = loop.set_up(Start(parse(given), world, StopRequest()))
        with job.telemetry:
            figures, losses = save(job) if arguments.rank == "save" else resume(job)
        if world.is_main:
            print(json.dumps({"figures": figures, "losses": losses}), flush=True)


def save(job: loop.Job) -> tuple[list[Figure], list[float]]:
    """Trains, with checkpoints in between; also the losses of the steps after the last one."""
    for _ in range(WARM_UP):
        timed_step(job)
        job.checkpoints.prepare()
    job.checkpoints.wait()
    plain = [timed_step(job)[0] for _ in range(BETWEEN)]
    step = statistics.median(plain)
    stalls, calls, writes, costs = [], [], [], []
    for _ in range(SAVES):
        clock = time.perf_counter()
        job.checkpoints.save()
        calls.append(job.checkpoints.stalled)
        first = timed_step(job)
        stalls.append(time.perf_counter() - clock - step)
        after = [timed_step(job) for _ in range(BETWEEN)]
        costs.append(stalls[-1] + sum(seconds - step for seconds, _loss in after))
        job.checkpoints.wait()
        writes.append(job.checkpoints.wrote)
    newest = catalog.path_of(job.state.progress.step - BETWEEN - 1)
    gigabytes = sum(job.folder.sizes(newest).values()) / 1e9
    against = f"{job.world.size} × {card()}, {gigabytes:.2f} GB a job, median step {step:.4f} s"
    figures: list[Figure] = [
        ("checkpoint_first_stall_s", stalls[0], "s", f"counted apart; {against}"),
        ("checkpoint_stall_s", max(stalls[1:]), "s", f"< 0.5, the worst of 4; {against}"),
        ("checkpoint_save_call_s", max(calls[1:]), "s", f"part of the stall; {against}"),
        ("checkpoint_cost_s", max(costs[1:]), "s", f"of {BETWEEN + 1} steps; {against}"),
        ("checkpoint_write_s", statistics.median(writes), "s", f"in a thread; {against}"),
    ]
    return figures, [loss for _seconds, loss in (first, *after)][:COMPARED]


def resume(job: loop.Job) -> tuple[list[Figure], list[float]]:
    """Takes the steps after the newest checkpoint, and times the first; also their losses."""
    step = job.state.progress.step
    losses = [timed_step(job)[1]]
    seconds = time.time() - float(os.environ[STARTED_ENV])
    against = f"< 60; {job.world.size} × {card()}, from torchrun's start, step {step}"
    losses += [timed_step(job)[1] for _ in range(COMPARED - 1)]
    return [("resume_to_first_step_s", seconds, "s", against)], losses


def timed_step(job: loop.Job) -> tuple[float, float]:
    """The seconds of a step, to the end of its work on the device; and its loss."""
    clock = time.perf_counter()
    loop.train_step(job)
    synchronize()
    seconds = time.perf_counter() - clock
    return seconds, mean_loss(job.state.meter.take().tolist()) or 0.0


if __name__ == "__main__":
    main()
