"""Measures all that this machine can.

    python -m benchmarks

The launcher needs no accelerator; training over GPUs is measured where there are some.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import package
from benchmarks.launcher import __main__ as launcher


def main() -> None:
    """Runs every benchmark that finds what it needs here."""
    package.main()
    launcher.main([])
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if gpus:
        with tempfile.TemporaryDirectory(prefix="kfp-pytorch-bench-") as folder:
            for words in (
                ["benchmarks.parallel", "--gpus", str(gpus)],
                ["benchmarks.checkpoint", "--gpus", str(gpus), "--output", folder],
                ["benchmarks.training", "telemetry", "jpeg", "input"],
            ):
                subprocess.run([sys.executable, "-m", *words], check=True)
    else:
        print("no GPU is here: training over several was not measured", file=sys.stderr)


if __name__ == "__main__":
    main()
