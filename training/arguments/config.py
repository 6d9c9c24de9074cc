"""The arguments of a training run, as a checked, frozen dataclass."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

from kfp_pytorch.launcher.constants import OUTPUT_ENV, RESUME_FROM_ENV
from kfp_pytorch.training.arguments.parallelism import read_sizes
from kfp_pytorch.training.arguments.profile_request import read_profile_request
from kfp_pytorch.training.entry.termination_message import printable
from kfp_pytorch.training.errors import ConfigError

DATASETS = ("digits", "fashion-mnist", "imagefolder", "shards", "synthetic")
TEXT = "text"
LANGUAGE_PREFIX = "lm-"
LANGUAGE_MODELS = ("tiny", "10m", "125m", "1.4b", "7b")
Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)
# The defaults of language models, where they differ.
LANGUAGE_DEFAULTS: dict[str, Any] = {
    "dataset": TEXT,
    "optimizer": "adamw",
    "epochs": 1,
    "batch_size": 16,
    "lr": 1e-3,
    "lr_scaling": "none",
    "warmup_epochs": 0.05,
    "weight_decay": 0.1,
    "label_smoothing": 0.0,
}
DEFAULT_OUTPUT = "kfp-pytorch-output"
_FROM_ONE = (
    *("epochs", "batch_size", "log_every", "checkpoint_every", "keep"),
    *("shuffle_block", "prefetch", "accumulate"),
)
_FROM_ZERO = (
    *("max_train_samples", "seed", "warmup_epochs", "weight_decay"),
    *("skip_corrupt", "rank_timeout", "checkpoint_every_steps"),
    *("max_steps", "clip_norm"),
)
# Ignored, arguments of the other kind of model would seem to have an effect.
_LANGUAGE_ONLY = ("max_steps", "text_files", "seq_len", "recompute", "clip_norm")
_IMAGES_ONLY = ("data_dir", "download", "image_size", "max_train_samples", "skip_corrupt")
_PATHS = ("output", "resume_from", "data_dir")
# The largest number of 32 bits, and more than any argument can mean: beyond it torch overflows.
_MOST = 2**32 - 1
# Each has a place on the device.
_MOST_SKIPPED = 1_000_000
# Each is a process.
_MOST_WORKERS = 1024
# An image of that side takes most of a gigabyte.
_MOST_SIDE = 8192


@dataclass(frozen=True)
class Config:
    """The arguments of a training run. Each entry below is the text of `--help`.

    Attributes:
        dataset: `digits`, `fashion-mnist`, `imagefolder`, `shards` or `synthetic`; `text` for a
            language model.
        model: `small_cnn`, the name of a classification model of torchvision, or a language model:
            `lm-tiny`, `lm-10m`, `lm-125m`, `lm-1.4b` or `lm-7b`.
        epochs: Passes through the data.
        max_steps: For language models: steps after which training ends, if the epochs have not
            ended before; 0 for no limit.
        batch_size: Samples in a batch of one process; the global batch is this times the
            number of processes.
        lr: The learning rate of one process.
        lr_scaling: `linear` multiplies `lr` by the number of processes, `none` does not.
        warmup_epochs: Epochs over which the rate goes from `lr` to the scaled rate.
        optimizer: `sgd` or `adamw`; a language model takes adamw.
        momentum: SGD's momentum.
        weight_decay: The optimizer's weight decay.
        label_smoothing: Label smoothing of the training loss, from 0 to below 1.
        image_size: Height and width to which images are resized; 0 leaves those in memory as they
            are, and takes 224 for those in files.
        text_files: Files and folders with text for a language model; by default the sources of
            Python's standard library.
        seq_len: Bytes that a language model reads at once; 0 takes the model's own.
        parallelism: How ranks share a language model: ways out of ddp, fsdp2, tp and pp with their
            sizes, such as `fsdp2=2,tp=2`; one may go without a size. Image models take ddp.
        recompute: What backward of a language model computes again instead of keeping it: `none`,
            `selective` or `full`.
        clip_norm: The largest global norm of a language model's gradients; 0 for no limit.
        data_dir: The folder of a data set that is not part of a package; for imagefolder and
            shards a path or an fsspec URI.
        download: Whether to download a data set that is not in `data_dir`.
        max_train_samples: Train on this many samples only; 0 means all.
        seed: Seed of the weights, of dropout, of the order of samples and of random crops.
        shuffle_block: Neighbours in a shard that are shuffled and read together; 1 shuffles each
            sample by itself.
        workers: Processes of each rank that read and decode files; -1 means one less than the CPU
            cores of the rank, 0 means none.
        prefetch: Batches that workers prepare ahead.
        decode: Where JPEGs are decoded: `cpu`, `gpu` or `auto`.
        skip_corrupt: Images that cannot be decoded and are left out by each process, at most.
        accumulate: Parts in which a process computes its batch, one after the other: their
            gradients add up, and memory is needed for one part only.
        precision: What matrices are multiplied in: `bf16`, `fp32` or `auto`, which is bf16 on GPUs
            that have it.
        tf32: Whether a GPU multiplies float32 matrices with the precision of TF32.
        channels_last: Whether the channels of an image are neighbours in a GPU's memory.
        compile: Whether the model is compiled: `on`, `off` or `auto`, which is on for GPUs where
            there is a compiler.
        cudnn_benchmark: Whether a GPU benchmarks its convolutions and uses the fastest ones.
        fused_optimizer: Whether a GPU updates all weights in one kernel.
        static_graph: Whether ranks may rely on the same weights being used in every step.
        log_every: Steps between two reports of the training loss.
        skip_bad_steps: How many steps whose loss or gradients are not finite are skipped before
            training stops; 0 stops at the first.
        rank_timeout: Seconds without progress after which a rank counts as hanging; 0 means never.
        metrics_port: The port at which each node serves metrics for Prometheus; 0 for none.
        profile_steps: Steps to trace as FIRST:LAST, counted from 1; empty for none.
        profile_ranks: The ranks to trace with commas between them, or `all`.
        checkpoint_every: Epochs between two checkpoints.
        checkpoint_every_steps: Steps between two checkpoints, beside those after epochs; 0 for
            none.
        keep: How many of the newest checkpoints to keep, beside the one with the lowest loss on
            held-out samples.
        resume: `auto` resumes from the newest checkpoint, `never` deletes all checkpoints.
        collective_timeout: Seconds that a rank waits for the others in one exchange.
        output: The job's folder, a path or an fsspec URI.
        resume_from: Another job's folder to start from; empty for none.
    """

    dataset: str = "digits"
    model: str = "small_cnn"
    epochs: int = 15
    max_steps: int = 0
    batch_size: int = 64
    lr: float = 0.05
    lr_scaling: str = "linear"
    warmup_epochs: float = 1.0
    optimizer: str = "sgd"
    momentum: float = 0.9
    weight_decay: float = 1e-4
    label_smoothing: float = 0.1
    image_size: int = 0
    text_files: tuple[str, ...] = ()
    seq_len: int = 0
    parallelism: str = "ddp"
    recompute: str = "none"
    clip_norm: float = 1.0
    data_dir: str = ""
    download: bool = False
    max_train_samples: int = 0
    seed: int = 0
    shuffle_block: int = 16
    workers: int = -1
    prefetch: int = 2
    decode: str = "auto"
    skip_corrupt: int = 0
    accumulate: int = 1
    precision: str = "auto"
    tf32: bool = True
    channels_last: bool = True
    compile: str = "auto"
    cudnn_benchmark: bool = True
    fused_optimizer: bool = True
    static_graph: bool = True
    log_every: int = 10
    skip_bad_steps: int = 0
    rank_timeout: float = 240.0
    metrics_port: int = 0
    profile_steps: str = ""
    profile_ranks: str = "0"
    checkpoint_every: int = 1
    checkpoint_every_steps: int = 0
    keep: int = 2
    resume: str = "auto"
    collective_timeout: float = 300.0
    output: str = DEFAULT_OUTPUT
    resume_from: str = ""

    def __post_init__(self) -> None:
        _one_of("lr-scaling", self.lr_scaling, ("linear", "none"))
        _one_of("resume", self.resume, ("auto", "never"))
        _one_of("optimizer", self.optimizer, ("sgd", "adamw"))
        _one_of("decode", self.decode, ("auto", "cpu", "gpu"))
        _one_of("precision", self.precision, ("auto", "bf16", "fp32"))
        _one_of("compile", self.compile, ("auto", "on", "off"))
        for name in _FROM_ONE:
            _between(name, getattr(self, name), 1)
        for name in _FROM_ZERO:
            _between(name, getattr(self, name), 0)
        self._check_model()
        _between("image_size", self.image_size, 0, _MOST_SIDE)
        _between("workers", self.workers, -1, _MOST_WORKERS)
        _between("skip_bad_steps", self.skip_bad_steps, 0, _MOST_SKIPPED)
        if self.accumulate > 1 and self.batch_size < 2 * self.accumulate:
            raise ConfigError(
                f"--accumulate is {self.accumulate}, and --batch-size {self.batch_size} leaves "
                "less than 2 samples to a part; give fewer parts or a larger batch"
            )
        _between("collective_timeout", self.collective_timeout, 1)
        if self.rank_timeout:
            _between("rank_timeout", self.rank_timeout, 1)
        if not 0 <= self.metrics_port < 65536:
            raise ConfigError(f"--metrics-port is {self.metrics_port}; it must be 0 to 65535")
        read_profile_request(self.profile_steps, self.profile_ranks)
        _above_zero("lr", self.lr)
        _below_one("momentum", self.momentum)
        _below_one("label_smoothing", self.label_smoothing)
        if not self.output.strip():
            raise ConfigError(f"--output is empty; give a folder, or set {OUTPUT_ENV}")
        if printable(self.output) != self.output:
            raise ConfigError(
                f"--output is {self.output!r}, which is no UTF-8 and no name for TensorBoard's "
                "files; give another folder, or set LC_ALL=C.UTF-8 if it is the locale that differs"
            )
        anew_from = self.resume == "never" and self.resume_from
        if anew_from and _canonical(anew_from) == _canonical(self.output):
            raise ConfigError(
                f"--resume is never, which deletes the checkpoints in {self.output}, and "
                "--resume-from names that very folder to start from; give another --output, or "
                "leave out one of the two"
            )

    @property
    def is_language_model(self) -> bool:
        """Whether it is a language model that is trained, not an image classifier."""
        return self.model.startswith(LANGUAGE_PREFIX)

    def _check_model(self) -> None:
        """Refuses what this kind of model cannot be trained with."""
        if not self.model:
            raise ConfigError("--model is empty; give small_cnn or a model of torchvision")
        _one_of("recompute", self.recompute, RECOMPUTE)
        ways = read_sizes(self.parallelism)
        if self.is_language_model:
            _one_of("model", self.model, [LANGUAGE_PREFIX + name for name in LANGUAGE_MODELS])
            _one_of(f"dataset of {self.model}", self.dataset, (TEXT,))
            _one_of(f"optimizer of {self.model}", self.optimizer, ("adamw",))
            self._refuse(_IMAGES_ONLY, "an image model")
            if self.seq_len:
                _between("seq_len", self.seq_len, 2)
            if self.batch_size % self.accumulate:
                raise ConfigError(
                    f"--accumulate is {self.accumulate}, and --batch-size {self.batch_size} of a "
                    "language model cannot be split into as many equal parts; give a multiple"
                )
            return
        _one_of("dataset", self.dataset, DATASETS)
        if set(ways) != {"ddp"}:
            raise ConfigError(
                f"--parallelism is {self.parallelism!r}; image models take ddp alone, and language "
                f"models such as --model {LANGUAGE_PREFIX}tiny all ways"
            )
        self._refuse(_LANGUAGE_ONLY, "a language model")

    def _refuse(self, names: Sequence[str], other: str) -> None:
        """Refuses arguments of another kind of model."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in names and value != field.default:
                raise ConfigError(
                    f"{_flag(field.name)} is {value!r}, and {self.model} has no use for it; "
                    f"leave it out, or train {other}"
                )


def parse(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> Config:
    """Turns command-line arguments into a checked configuration, or raises ConfigError."""
    output = environ.get(OUTPUT_ENV, "").strip() or DEFAULT_OUTPUT
    parser = _parser(output, environ.get(RESUME_FROM_ENV, "").strip())
    parsed = parser.parse_args(arguments)
    if parsed.model.startswith(LANGUAGE_PREFIX):
        parser.set_defaults(**LANGUAGE_DEFAULTS)
        parsed = parser.parse_args(arguments)
    # With a blank before it a path would be a relative one.
    trimmed = {name: getattr(parsed, name).strip() for name in _PATHS}
    # An empty argument is no path; it would be the current folder.
    files = tuple(name for name in parsed.text_files if name.strip())
    return Config(**{**vars(parsed), **trimmed, "text_files": files})


class _Parser(argparse.ArgumentParser):
    """A parser that raises, so that the termination message can have the error."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; `python -m kfp_pytorch.training --help` lists the arguments")


def _parser(output: str, resume_from: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m kfp_pytorch.training",
        description="Trains an image classifier or a language model on all processes of the job.",
        allow_abbrev=False,
    )
    helps = _attribute_helps()
    defaults = {"output": output, "resume_from": resume_from}
    for field in dataclasses.fields(Config):
        flag = _flag(field.name)
        default = defaults.get(field.name, field.default)
        text = f"{helps[field.name]} (default: {default!r})".replace("%", "%%")
        if isinstance(field.default, tuple):
            parser.add_argument(flag, dest=field.name, default=default, help=text, nargs="*")
        elif isinstance(field.default, bool):
            action = argparse.BooleanOptionalAction
            parser.add_argument(flag, dest=field.name, default=default, help=text, action=action)
        else:
            kind = type(field.default)
            parser.add_argument(flag, dest=field.name, default=default, help=text, type=kind)
    return parser


def _attribute_helps() -> dict[str, str]:
    """Each argument's help, which is its entry in the docstring of `Config`."""
    helps: dict[str, str] = {}
    name = ""
    for line in (Config.__doc__ or "").partition("Attributes:")[2].splitlines():
        words = line.strip()
        head, colon, rest = words.partition(":")
        if colon and head in Config.__dataclass_fields__:
            name, words = head, rest.strip()
            helps[name] = ""
        if name and words:
            helps[name] = f"{helps[name]} {words}".strip()
    return helps


def _canonical(uri: str) -> str:
    """The one form of equal paths or URIs."""
    path = uri.strip().removeprefix("file://")
    return path.rstrip("/") if "://" in path else str(Path(path).resolve())


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _one_of(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigError(f"{_flag(name)} is {value!r}; it can be {', '.join(choices)}")


def _between(name: str, value: float, least: float, most: float = _MOST) -> None:
    if not least <= value <= most:
        raise ConfigError(
            f"{_flag(name)} is {value}; it must be at least {least} and at most {most}"
        )


def _above_zero(name: str, value: float) -> None:
    if not 0 < value <= _MOST:
        raise ConfigError(f"{_flag(name)} is {value}; it must be above 0 and at most {_MOST}")


def _below_one(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ConfigError(f"{_flag(name)} is {value}; it must be from 0 to below 1")
