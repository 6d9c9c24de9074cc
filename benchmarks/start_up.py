"""How long the command takes to start.

    python -m benchmarks.start_up

Figures in seconds: help_s (`kfp-pytorch --help`), kfp_command_s (`kfp-pytorch runs list` against a
server on this machine that has no runs), and kfp_import_s, the part of it that is `import kfp`.
"""

import resource
import statistics
import subprocess
import sys
import time

from harness.kfp_api.server import KfpServer

from benchmarks.figures import machine, parser, show

REPEATS = 11
LIMITS = {"help_s": "limit 0.3; ", "kfp_command_s": "limit 1.5; ", "kfp_import_s": ""}


def main() -> None:
    parser("benchmarks.start_up", __doc__).parse_args()
    server = KfpServer()
    command = [sys.executable, "-m", "kfp_pytorch.cli"]
    commands = {
        "help_s": [*command, "--help"],
        "kfp_command_s": [*command, "runs", "list", "--host", server.url],
        "kfp_import_s": [sys.executable, "-c", "import kfp"],
    }
    for figure, words in commands.items():
        values, used = zip(*(_seconds(words) for _ in range(REPEATS)), strict=True)
        against = (
            f"{LIMITS[figure]}median of {REPEATS}, slowest {max(values):.2f}; "
            f"{statistics.median(used):.2f} s of CPU; {machine()}"
        )
        show(figure, statistics.median(values), "s", against)
    server.stop()


def _seconds(words: list[str]) -> tuple[float, float]:
    """Runs a command; the seconds that it took by the clock, and of CPU."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
