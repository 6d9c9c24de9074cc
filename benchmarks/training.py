"""The training program's throughput on image models, against a plain loop on the same cards.

    python -m benchmarks.training one --baseline LOOP.py
    python -m benchmarks.training scaling --gpus 4 --baseline LOOP.py

LOOP.py is a plain loop on random images; it is called under torchrun with MODE MODEL BATCH, MODE
being amp (bf16 autocast alone) or opt (compiled and so on), and prints a line of JSON with
img_s_gpu. What is measured of this project is the program itself, as a pod runs it: the rates are
those that it reports, each over 30 steps, after 30 steps of warming up; the median of three counts.
Figures, each a ratio to the plain loop: resnet50_ratio_opt_512, vit_ratio_opt, resnet50_ratio_amp;
and to the mean of each GPU by itself: vit_scaling_GPUS, vit_plain_scaling_GPUS (the plain loop),
vit_scaling_ratio_GPUS (of these two), resnet50_scaling_GPUS.

    python -m benchmarks.training telemetry

prints telemetry_ratio: the rate with all telemetry on and a checkpoint every 200 steps over the
rate with reports alone, over 600 steps each by the clock: with a report every 10 steps, Prometheus
asking every second, and one trace of 5 steps.

    python -m benchmarks.training jpeg input

trains from JPEG files, and reads them without training: jpeg_ratio, jpeg_ratio_decoded_by_cpu and
jpeg_ratio_decoded_by_gpu are ratios to the rate on random images, input_DECODER_COUNT_workers are
images a second.
"""

from __future__ import annotations

import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from harness.hands import until
from harness.ports import free_port

from benchmarks import jpegs
from benchmarks.cards import card, synchronize, torchrun
from benchmarks.figures import parser, show
from benchmarks.program import scraped, training_rates, training_reports
from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.data import datasets, device_loader
from kfp_pytorch.training.data.sampler import DistributedBatchSampler
from kfp_pytorch.training.parallel.process_group import World
from kfp_pytorch.training.resources import usable_cores

RESNET, VIT = "resnet50", "vit_b_16"
# Images a GPU's batch, of each model.
BATCHES = {RESNET: 512, VIT: 256}
STEPS, REPORTS = 30, 3
# Threads write the trace and the checkpoints.
WRITTEN_WITHIN = 60.0
AMP_BATCH = 256


def main() -> None:
    options = parser("benchmarks.training", __doc__)
    whats = ("one", "telemetry", "jpeg", "input", "scaling")
    options.add_argument("what", nargs="+", choices=whats)
    options.add_argument("--baseline", type=Path, help="the plain loop to compare with")
    options.add_argument("--gpus", type=int, default=4)
    options.add_argument("--models", nargs="+", default=[RESNET, VIT], help="those of `one`")
    options.add_argument("--images", type=int, default=16_384, help="distinct JPEG files")
    options.add_argument("--workers", type=int, nargs="*", default=[4, 8, -1])
    options.add_argument("--tiny", action="store_true", help="only try out that it runs")
    arguments = options.parse_args()
    bench = Bench(arguments.baseline, arguments.tiny)
    if "one" in arguments.what:
        bench.one_gpu(arguments.models)
    if "telemetry" in arguments.what:
        bench.telemetry()
    if "scaling" in arguments.what:
        bench.scaling(arguments.gpus)
    if {"jpeg", "input"} & set(arguments.what):
        with tempfile.TemporaryDirectory(prefix="kfp-pytorch-jpegs-") as folder:
            made = jpegs.make(Path(folder), arguments.images, links=4)
            if "jpeg" in arguments.what:
                bench.jpeg(made)
            if "input" in arguments.what:
                bench.input(made, arguments.workers)


class Bench:
    """What was measured so far, so that nothing is measured twice."""

    def __init__(self, baseline: Path | None, tiny: bool) -> None:
        self._baseline = baseline
        self._tiny = tiny
        self._synthetic: dict[tuple[str, tuple[int, ...]], float] = {}
        self._card = card()

    def one_gpu(self, models: Sequence[str]) -> None:
        """Each model on one GPU, right after or before the plain loop on the same GPU."""
        for model, name in ((RESNET, "resnet50_ratio_opt_512"), (VIT, "vit_ratio_opt")):
            if model in models:
                batch = BATCHES[model]
                theirs = self.plain("opt", model, batch)
                self.compare(name, self.synthetic(model), theirs, f"opt, batch {batch}")
        if RESNET in models:
            theirs = self.plain("amp", RESNET, AMP_BATCH)
            what = f"amp, batch {AMP_BATCH}"
            self.compare("resnet50_ratio_amp", self.synthetic(RESNET), theirs, what)

    def telemetry(self) -> None:
        """Images a second with all telemetry and with checkpoints, over those with reports only."""
        steps = 6 if self._tiny else 600
        without = self.pace(steps, [])
        port = free_port()
        every = 2 if self._tiny else 10
        wanted = [f"--log-every={every}", f"--metrics-port={port}"]
        wanted += [f"--profile-steps={steps // 2 + 1}:{steps // 2 + 5}"]
        wanted += [f"--checkpoint-every-steps={steps // 3}"]
        with scraped(f"http://127.0.0.1:{port}/metrics") as pages:
            measured = self.pace(steps, wanted)
        against = (
            f"{measured:.0f} of {without:.0f} images/s over {steps} steps, {len(pages)} scrapes"
        )
        show("telemetry_ratio", measured / without, "ratio", f">= 0.98; {against}; {self._card}")

    def pace(self, steps: int, arguments: Sequence[str]) -> float:
        """Images a second of ResNet-50 by the clock, whatever it does between its steps."""
        options = self.options(RESNET, ["--dataset=synthetic", *arguments])
        first = 2 * self.every
        with (
            tempfile.TemporaryDirectory(prefix="kfp-pytorch-bench-") as folder,
            closing(training_reports(options, [0], Path(folder))) as found,
        ):
            start = next(report for report in found if report.step >= first)
            end = next(report for report in found if report.step >= first + steps)
            for made in ("profile", "checkpoints") if arguments else ():
                until(lambda made=made: any(Path(folder, made).glob("*")), WRITTEN_WITHIN)
        images = (end.step - start.step) * self.batch(RESNET)
        return images / (end.at - start.at)

    def scaling(self, gpus: int) -> None:
        """Images a second and GPU of several GPUs over those of each alone, at the same time.

        The plain loop is measured on the model whose exchange is the larger part of a step.
        """
        every = range(gpus)
        cards = f"{gpus} x {self._card}"
        ours = self.scaled(functools.partial(self.synthetic, VIT), every)
        show(f"vit_scaling_{gpus}", ours[0], "ratio", f"{ours[1]}; {cards}")
        plain = functools.partial(self.plain, "opt", VIT, BATCHES[VIT])
        theirs = self.scaled(plain, every)
        show(f"vit_plain_scaling_{gpus}", theirs[0], "ratio", f"{theirs[1]}; the plain loop")
        against = f">= 1; {ours[0]:.4f} over {theirs[0]:.4f}; {cards}"
        show(f"vit_scaling_ratio_{gpus}", ours[0] / theirs[0], "ratio", against)
        resnet = self.scaled(functools.partial(self.synthetic, RESNET), every)
        show(f"resnet50_scaling_{gpus}", resnet[0], "ratio", f">= 0.98; {resnet[1]}; {cards}")

    def scaled(
        self, rate: Callable[[Sequence[int]], float], every: Sequence[int]
    ) -> tuple[float, str]:
        """The rate of GPUs that train together over that of each alone; and the rates as text."""
        with ThreadPoolExecutor(len(every)) as pool:
            alone = list(pool.map(lambda gpu: rate([gpu]), every))
        together, mean = rate(every), statistics.mean(alone)
        each = ", ".join(f"{one:.0f}" for one in alone)
        return together / mean, f"{together:.0f} images/s a GPU of {len(every)}, alone {each}"

    def jpeg(self, folder: Path) -> None:
        """Training from files over training from random images, decoded here and there."""
        synthetic = self.synthetic(RESNET)
        rates = {}
        for decode in ("cpu", "gpu") if torch.cuda.is_available() else ("cpu",):
            options = ["--dataset=imagefolder", f"--data-dir={folder}", f"--decode={decode}"]
            rates[decode] = self.program(RESNET, options)
            against = f"{rates[decode]:.0f} of {synthetic:.0f} images/s, {self.machine()}"
            show(f"jpeg_ratio_decoded_by_{decode}", rates[decode] / synthetic, "ratio", against)
        best = max(rates, key=lambda decode: rates[decode])
        show("jpeg_ratio", rates[best] / synthetic, "ratio", f"decoded by {best}, {self.machine()}")

    def input(self, folder: Path, workers: Sequence[int]) -> None:
        """A row for each way of decoding and number of workers: images a second, read alone."""
        cuda = torch.cuda.is_available()
        world = World(0, 0, 1, torch.device("cuda", 0) if cuda else torch.device("cpu"))
        for decode in ("cpu", "gpu") if cuda else ("cpu",):
            for count in workers:
                config = Config(
                    dataset="imagefolder",
                    data_dir=str(folder),
                    batch_size=16 if self._tiny else BATCHES[RESNET],
                    workers=count,
                    decode=decode,
                )
                rate = reading_rate(config, world, batches=4 if self._tiny else 20)
                name = f"input_{decode}_{'all' if count < 0 else count}_workers"
                show(name, rate, "images/s", f"500 x 400 JPEGs to 224 x 224; {self.machine()}")

    def synthetic(self, model: str, gpus: Sequence[int] = (0,)) -> float:
        """Images a second and GPU of the program, on random images."""
        key = (model, tuple(gpus))
        if key not in self._synthetic:
            self._synthetic[key] = self.program(model, ["--dataset=synthetic"], gpus)
        return self._synthetic[key]

    @property
    def every(self) -> int:
        """Steps between two reports."""
        return 2 if self._tiny else STEPS

    def batch(self, model: str) -> int:
        return 2 if self._tiny else BATCHES[model]

    def options(self, model: str, arguments: Sequence[str]) -> list[str]:
        """The arguments of a training; of one that is given twice, the last counts."""
        own = [f"--model={model}", f"--batch-size={self.batch(model)}", "--epochs=1"]
        own += [f"--log-every={self.every}", f"--image-size={32 if self._tiny else 0}"]
        # Labels have nothing to do with images here: a usual rate would diverge.
        return [*own, "--lr=0.001", *arguments]

    def program(self, model: str, arguments: Sequence[str], gpus: Sequence[int] = (0,)) -> float:
        """Images a second and GPU of the program, as it reports them itself."""
        options = self.options(model, arguments)
        print(f"# GPUs {list(gpus)}: training {' '.join(options)}", flush=True)
        # The first report has the compiler's time in it.
        rates = training_rates(options, gpus, REPORTS + 1)[1:]
        return statistics.median(rates) / len(gpus)

    def plain(self, mode: str, model: str, batch: int, gpus: Sequence[int] = (0,)) -> float:
        """Images a second and GPU of the plain loop."""
        if self._baseline is None:
            raise SystemExit("give the plain loop with --baseline")
        command = [str(self._baseline), mode, model, str(batch)]
        visible = ",".join(map(str, gpus))
        done = torchrun(len(gpus), command, CUDA_VISIBLE_DEVICES=visible)
        return float(done[-1]["img_s_gpu"])

    def compare(self, figure: str, ours: float, theirs: float, what: str) -> None:
        name = self._baseline.name if self._baseline else ""
        against = f"{name} {what}: {theirs:.0f} images/s, ours {ours:.0f}; {self._card}"
        show(figure, ours / theirs, "ratio", against)

    def machine(self) -> str:
        return f"{self._card}, {usable_cores()} cores"


def reading_rate(config: Config, world: World, batches: int) -> float:
    """Images a second that reach the device while nothing else uses it."""
    images = datasets.load(config, world)
    sampler = DistributedBatchSampler(
        len(images.train.labels), 0, 1, config.batch_size, seed=0, block=images.block
    )
    with closing(device_loader.open_device_loader(config, world, images)) as source:
        supply: Iterator[Any] = source.train(0, sampler)
        # What workers made ahead while they started would be counted as if it took no time.
        for _ in range(batches // 2):
            next(supply)
        synchronize()
        start = time.perf_counter()
        for _ in range(batches):
            next(supply)
        synchronize()
        seconds = time.perf_counter() - start
        for _ in supply:
            break
    return batches * config.batch_size / seconds


if __name__ == "__main__":
    main()
