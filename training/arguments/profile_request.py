"""The text of `--profile-steps` and `--profile-ranks`: which steps are traced, on which ranks."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kfp_pytorch.training.errors import ConfigError

# A trace of a step has some megabytes.
MOST_STEPS = 100


@dataclass(frozen=True)
class ProfileRequest:
    """What to trace."""

    first: int  # the first step; steps count from 1 since the job's start
    last: int  # the last step
    ranks: frozenset[int] | None  # the ranks; None for all


def read_profile_request(steps: str, ranks: str) -> ProfileRequest | None:
    """Reads both arguments; None for no trace. Raises ConfigError if one is invalid."""
    if not steps:
        return None
    found = re.fullmatch(r"(\d+):(\d+)", steps)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise ConfigError(
            f"--profile-steps is {steps!r}; write the first step, from 1, and the last as in 10:13"
        )
    first, last = int(found[1]), int(found[2])
    if last - first >= MOST_STEPS:
        raise ConfigError(
            f"--profile-steps is {steps!r}, {last - first + 1} steps; a trace can have at most "
            f"{MOST_STEPS}"
        )
    if ranks == "all":
        return ProfileRequest(first, last, None)
    if not re.fullmatch(r"\d+(,\d+)*", ranks):
        raise ConfigError(f"--profile-ranks is {ranks!r}; write ranks as in 0,3, or all")
    return ProfileRequest(first, last, frozenset(map(int, ranks.split(","))))
