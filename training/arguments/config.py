"""The arguments of a training run, as a checked, frozen dataclass."""

from __future__ import annotations

import argparse
import dataclasses
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

from kfp_pytorch.launcher.constants import OUTPUT_ENV, RESUME_FROM_ENV
from kfp_pytorch.training import triton_repository
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
DEFAULT_OUTPUT = "kfp-pytorch-output"
# See the head of that file.
_ARGUMENTS: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("arguments.toml").read_text(encoding="utf-8")
)
_PATHS = ("output", "resume_from", "data_dir")
# The largest number of 32 bits, and more than any argument can mean: beyond it torch overflows.
_MOST = 2**32 - 1


@dataclass(frozen=True)
class Config:
    """The arguments of a training run; `arguments.toml` says what each means, and its limits."""

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
    triton_name: str = ""

    def __post_init__(self) -> None:
        for name, about in _ARGUMENTS.items():
            if "choices" in about:
                _one_of(name, getattr(self, name), about["choices"])
        for name, about in _ARGUMENTS.items():
            if "least" in about:
                _between(name, getattr(self, name), about["least"], about.get("most", _MOST))
        self._check_model()
        if self.accumulate > 1 and self.batch_size < 2 * self.accumulate:
            raise ConfigError(
                f"--accumulate is {self.accumulate}, and --batch-size {self.batch_size} leaves "
                "less than 2 samples to a part; give fewer parts or a larger batch"
            )
        if self.rank_timeout:
            _between("rank_timeout", self.rank_timeout, 1)
        if not 0 <= self.metrics_port < 65536:
            raise ConfigError(f"--metrics-port is {self.metrics_port}; it must be 0 to 65535")
        read_profile_request(self.profile_steps, self.profile_ranks)
        if self.triton_name:
            triton_repository.check_name(self.triton_name)
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
        if not self.model:
            raise ConfigError("--model is empty; give small_cnn or a model of torchvision")
        _one_of("recompute", self.recompute, RECOMPUTE)
        ways = read_sizes(self.parallelism)
        if self.is_language_model:
            _one_of("model", self.model, [LANGUAGE_PREFIX + name for name in LANGUAGE_MODELS])
            _one_of(f"dataset of {self.model}", self.dataset, (TEXT,))
            _one_of(f"optimizer of {self.model}", self.optimizer, ("adamw",))
            self._refuse_those_of("an image model")
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
        self._refuse_those_of("a language model")

    def _refuse_those_of(self, other: str) -> None:
        """Refuses arguments of another kind of model: they would seem to have an effect."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if _ARGUMENTS[field.name].get("only") == other and value != field.default:
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
        defaults = {name: about.get("language") for name, about in _ARGUMENTS.items()}
        parser.set_defaults(**{k: value for k, value in defaults.items() if value is not None})
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
    defaults = {"output": output, "resume_from": resume_from}
    for field in dataclasses.fields(Config):
        flag = _flag(field.name)
        default = defaults.get(field.name, field.default)
        words = " ".join(_ARGUMENTS[field.name]["help"].split())
        text = f"{words} (default: {default!r})".replace("%", "%%")
        if isinstance(field.default, tuple):
            parser.add_argument(flag, dest=field.name, default=default, help=text, nargs="*")
        elif isinstance(field.default, bool):
            action = argparse.BooleanOptionalAction
            parser.add_argument(flag, dest=field.name, default=default, help=text, action=action)
        else:
            kind = type(field.default)
            parser.add_argument(flag, dest=field.name, default=default, help=text, type=kind)
    return parser


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
