"""Measures all that this machine can.

    python -m benchmarks

It runs benchmarks.package (container_bytes_max and others) and benchmarks.launcher (detection_p99_s
and others). Where there are GPUs, it also runs benchmarks.parallel (fsdp2_tokens_s_gpu and others),
benchmarks.checkpoint (checkpoint_stall_s and others) and benchmarks.training (telemetry_ratio,
jpeg_ratio and others). `--help` of each names all of its figures.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import package
from benchmarks.figures import parser
from benchmarks.launcher import __main__ as launcher


def main() -> None:
    """Runs every benchmark that finds what it needs here."""
    parser("benchmarks", __doc__).parse_args()
    package.main([])
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
