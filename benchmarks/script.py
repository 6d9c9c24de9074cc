"""What the library for other people's scripts adds to the start of one.

    python -m benchmarks.script

Figure: script_import_s, the time that importing it takes in a process that has torch, in seconds.
"""

import statistics
import subprocess
import sys

from benchmarks.figures import machine, parser, show

REPEATS = 11
LIMIT = 0.05
PROGRAM = """
import time, torch
began = time.perf_counter(), time.process_time()
from kfp_pytorch.training import script
print(time.perf_counter() - began[0], time.process_time() - began[1])
"""


def main() -> None:
    parser("benchmarks.script", __doc__).parse_args()
    values, used = zip(*(_seconds() for _ in range(REPEATS)), strict=True)
    against = (
        f"limit {LIMIT}; median of {REPEATS}, slowest {max(values):.3f}; "
        f"{statistics.median(used):.3f} s of CPU; {machine()}"
    )
    show("script_import_s", statistics.median(values), "s", against)


def _seconds() -> list[float]:
    command = [sys.executable, "-c", PROGRAM]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return [float(word) for word in found.stdout.split()]


if __name__ == "__main__":
    main()
