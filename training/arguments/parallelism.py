"""The text of `--parallelism`: which ways of training in parallel, over how many ranks each."""

from __future__ import annotations

from kfp_pytorch.training.errors import ConfigError

# From the outermost to the innermost: neighbouring ranks, which share a node's fast links, are in
# the same tensor-parallel group; the stages of a pipeline communicate least.
WAYS = ("pp", "ddp", "fsdp2", "tp")


def read_sizes(text: str) -> dict[str, int | None]:
    """Reads `way` and `way=size` parts; None for the size that is left open."""
    sizes: dict[str, int | None] = {}
    for part in text.split(","):
        way, has_size, size = (piece.strip() for piece in part.partition("="))
        if way not in WAYS:
            raise ConfigError(f"--parallelism {text!r}: {way!r} is none of {', '.join(WAYS)}")
        if way in sizes:
            raise ConfigError(f"--parallelism {text!r} names {way} twice")
        if has_size and not (size.isdecimal() and int(size) >= 1):
            raise ConfigError(
                f"--parallelism {text!r}: the size of {way} is {size!r}, not a whole number ≥ 1"
            )
        sizes[way] = int(size) if has_size else None
    open_ways = [way for way, size in sizes.items() if size is None]
    if len(open_ways) > 1:
        raise ConfigError(
            f"--parallelism {text!r}: only one of {', '.join(open_ways)} can go without a size"
        )
    return sizes
