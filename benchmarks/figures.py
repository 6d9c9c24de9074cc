"""What every benchmark has: its `--help`, and figures as one JSON object a line."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence


def parser(name: str, about: str | None) -> argparse.ArgumentParser:
    """Makes the parser of `python -m NAME`, whose help is the module's docstring as it is."""
    made = argparse.ArgumentParser(f"python -m {name}", description=about, allow_abbrev=False)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    return made


def show(figure: str, value: float, unit: str, against: str) -> None:
    """Prints one figure; `against` is its limit or a peer's figure, and how it was measured."""
    row = {"figure": figure, "value": round(value, 4), "unit": unit, "against": against}
    print(json.dumps(row, ensure_ascii=False), flush=True)


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest of the values that a part of them (0 to 1) does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(part * 1000) // 1000) - 1)]


def machine() -> str:
    """The machine in a few words, with how busy it has been in the last minute."""
    return f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
