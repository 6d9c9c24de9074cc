"""The arguments of a fine-tuning."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

# Where the initializers of a TrainJob put what they download.
_MODEL, _DATA = Path("/workspace/model"), Path("/workspace/dataset")


@dataclass(frozen=True)
class Arguments:
    """The checked arguments; an empty model or data is one that is made up."""

    model: str
    data: str
    epochs: int
    batch_size: int
    learning_rate: float
    lora_rank: int
    lora_alpha: int
    lora_dropout: float
    max_length: int
    held_out: float
    seed: int


def read(words: Sequence[str] | None = None) -> Arguments:
    """Read the arguments; what cannot work ends the program with exit code 2."""
    parser = argparse.ArgumentParser(
        "python -m kfp_pytorch.training.fine_tune", description=__doc__
    )
    add, whole = parser.add_argument, _number(int, 1)
    about = "a folder in Hugging Face's layout, or a name on its hub"
    add("--model", default=_there(_MODEL), help=f"{about}; by default what an initializer brought")
    add("--data", default=_there(_DATA), help="a file or folder of jsonl, json, parquet or csv")
    add("--epochs", type=whole, default=3, help="how often to go through the data")
    add("--batch-size", type=whole, default=8, help="examples in a batch of one process")
    add("--learning-rate", type=_number(float, 0, above=True), default=2e-4)
    add("--lora-rank", type=whole, default=16, help="the rank of the matrices that are trained")
    add("--lora-alpha", type=whole, default=32, help="their weight, divided by the rank")
    add("--lora-dropout", type=_number(float, 0, most=0.99), default=0.05)
    add("--max-length", type=whole, default=1024, help="tokens of an example; the rest is cut off")
    add(
        "--held-out",
        type=_number(float, 0, above=True, most=0.5),
        default=0.1,
        help="the share of examples to evaluate on",
    )
    add("--seed", type=_number(int, 0), default=0)
    return Arguments(**vars(parser.parse_args(words)))


def _there(folder: Path) -> str:
    return str(folder) if folder.is_dir() and any(folder.iterdir()) else ""


def _number(
    kind: type[float], least: float, *, above: bool = False, most: float = math.inf
) -> Callable[[str], float]:
    """Makes a reader of numbers within limits; `above`: the least itself is too small."""

    def read_number(text: str) -> float:
        value = kind(text)
        if not (least < value if above else least <= value) or not value <= most:
            limit = f"{'above' if above else 'at least'} {least:g}"
            limit += f" and at most {most:g}" if most < math.inf else ""
            raise argparse.ArgumentTypeError(f"{text} must be {limit}")
        return value

    # argparse names it where the text is no number.
    read_number.__name__ = "whole number" if kind is int else "number"
    return read_number
