"""The examples of a fine-tuning, from files."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from datasets import Dataset, disable_progress_bars, load_dataset

from kfp_pytorch.training.errors import DataError
from kfp_pytorch.training.fine_tune import made_up

_BUILDERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
# What TRL takes: https://huggingface.co/docs/trl/dataset_formats
_COLUMNS = ({"messages"}, {"prompt", "completion"}, {"text"})


def load(place: str, held_out: float, seed: int) -> tuple[Any, Any]:
    """The examples to train on and those to evaluate on.

    `place`: a file, or a folder, of which the files of one format are read; empty for made-up ones.
    Raises DataError: there are no examples in a form that TRL takes, or too few.
    """
    # A log shows them line by line.
    disable_progress_bars()
    every = _read(Path(place)) if place else Dataset.from_list(made_up.examples())
    if not any(columns <= set(every.column_names) for columns in _COLUMNS):
        raise DataError(
            f"the examples have the columns {', '.join(sorted(every.column_names))}; they need "
            "messages, or prompt and completion, or text"
        )
    if len(every) < 2:
        raise DataError(f"there is {len(every)} example; one to train on and one to evaluate on")
    parts = every.train_test_split(test_size=max(1, round(held_out * len(every))), seed=seed)
    return parts["train"], parts["test"]


def _read(place: Path) -> Any:
    files = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file())
    by_format: dict[str, list[str]] = defaultdict(list)
    for path in files:
        # Where data sets are downloaded, hidden folders hold what the download left.
        hidden = any(part.startswith(".") for part in path.relative_to(place).parts)
        if path.suffix in _BUILDERS and not hidden:
            by_format[_BUILDERS[path.suffix]].append(str(path))
    if not by_format:
        raise DataError(f"{place} has no file that ends in {', '.join(_BUILDERS)}")
    if len(by_format) > 1:
        raise DataError(
            f"{place} has files of several formats, {' and '.join(by_format)}: give the folder, or "
            "the file, of one of them"
        )
    ((builder, names),) = by_format.items()
    return load_dataset(builder, data_files=names, split="train")
