"""Training a transformer over several GPUs, against a plain loop on the same cards.

    python -m benchmarks.parallel --baseline LOOP.py --gpus 4

runs LOOP.py and the project's own loop one after the other under torchrun.

LOOP.py is a plain FSDP2 loop of a model as large as the preset. It is called with BATCH SEQ compile
and its last line of output is a JSON object with tokens_s_gpu and mfu.

Both loops train on random tokens and take the median of three times eight steps after warming up.
The project's own loop clips gradients, too. Figures: fsdp2_tokens_s_gpu, fsdp2_mfu (of the best
batch), and fsdp2_tokens_ratio to the plain loop.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.cards import card, synchronize, torchrun
from benchmarks.figures import parser, show
from kfp_pytorch.training.language.trainable import StepOptions, Trainable, build
from kfp_pytorch.training.language.transformer import TransformerConfig, preset
from kfp_pytorch.training.parallel.plan import ParallelPlan
from kfp_pytorch.training.telemetry import flops

WARM_UP, REPEATS, STEPS = 6, 3, 8


def main() -> None:
    options = parser("benchmarks.parallel", __doc__)
    options.add_argument("--baseline", type=Path, help="the plain loop to compare with")
    options.add_argument("--gpus", type=int, default=4)
    options.add_argument("--model", default="1.4b")
    options.add_argument("--plan", default="fsdp2")
    options.add_argument("--batch", type=int, default=8, help="sequences a GPU, in both loops")
    best = "for the best MFU"
    options.add_argument("--more-batches", type=int, nargs="*", default=[16], help=best)
    options.add_argument("--microbatches", type=int, default=1)
    options.add_argument("--recompute", default="none")
    options.add_argument("--no-compile", action="store_true")
    arguments = options.parse_args()
    if "RANK" in os.environ:
        measure_all(arguments)
    else:
        drive(arguments)


def drive(arguments: argparse.Namespace) -> None:
    ours = torchrun(arguments.gpus, ["-m", "benchmarks.parallel", *sys.argv[1:]])
    same = next(result for result in ours if result["batch"] == arguments.batch)
    best = max(ours, key=lambda result: result["tokens_s_gpu"])
    show("fsdp2_tokens_s_gpu", same["tokens_s_gpu"], "tokens/s", _words(same))
    if best["mfu"] is not None:
        show("fsdp2_mfu", best["mfu"], "ratio", f"{_words(best)}, by its data sheet")
    if arguments.baseline:
        seq = preset(arguments.model).seq_len
        loop = [str(arguments.baseline), str(arguments.batch), str(seq), "compile"]
        theirs = torchrun(arguments.gpus, loop)[-1]
        ratio = same["tokens_s_gpu"] / theirs["tokens_s_gpu"]
        against = (
            f"{arguments.baseline.name} with compile: {theirs['tokens_s_gpu']} tokens/s a GPU, "
            f"MFU {theirs['mfu']}; {_words(same)}"
        )
        show("fsdp2_tokens_ratio", ratio, "ratio", against)


def _words(result: dict[str, Any]) -> str:
    return (
        f"{result['gpus']} × {result['card']}, {result['plan']}, batch {result['batch']}, "
        f"sequence {result['seq']}"
    )


def measure_all(arguments: argparse.Namespace) -> None:
    """As one rank: measure each batch size and print a line for it."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        timeout=timedelta(seconds=120),
        device_id=device if cuda else None,
    )
    plan = ParallelPlan.parse(arguments.plan, dist.get_world_size())
    options = StepOptions(
        compile=not arguments.no_compile,
        recompute=arguments.recompute,
        microbatches=arguments.microbatches,
    )
    config = preset(arguments.model)
    trainable = build(config, plan, device, options)
    for batch in [arguments.batch, *arguments.more_batches]:
        try:
            result = measure(trainable, config, batch, device)
        except torch.cuda.OutOfMemoryError:
            # Too large a batch is an answer, too.
            result = {"batch": batch, "tokens_s_gpu": 0, "mfu": None, "note": "out of memory"}
        if dist.get_rank() == 0:
            print(json.dumps(result), flush=True)
    dist.destroy_process_group()


def measure(
    trainable: Trainable, config: TransformerConfig, batch: int, device: torch.device
) -> dict[str, Any]:
    plan = trainable.plan
    shape = (batch, config.seq_len + 1)
    data = [torch.randint(0, config.vocab, shape, device=device) for _ in range(4)]
    if device.type == "cuda":
        # What another batch size left in pieces would make the allocator stop and sort.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    run_steps(trainable, data, WARM_UP)
    seconds = statistics.median(run_steps(trainable, data, STEPS) / STEPS for _ in range(REPEATS))
    tokens = batch * config.seq_len * plan.data_ranks / plan.world_size / seconds
    mfu = flops.utilisation(tokens, config.flops_per_token, card())
    return {
        "plan": str(plan),
        "card": card(),
        "gpus": plan.world_size,
        "batch": batch,
        "seq": config.seq_len,
        "parameters_m": round(config.parameters / 1e6),
        "step_ms": round(seconds * 1e3, 1),
        "tokens_s_gpu": round(tokens),
        "mfu": None if mfu is None else round(mfu, 4),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if mfu else None,
    }


def run_steps(trainable: Trainable, data: list[torch.Tensor], steps: int) -> float:
    """Take some steps together with all ranks, and return the seconds that they took."""
    dist.barrier()
    synchronize()
    start = time.perf_counter()
    for i in range(steps):
        trainable.step(data[i % len(data)])
    synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
