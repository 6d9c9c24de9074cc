"""Measures all that this machine can.

    python -m benchmarks

It runs benchmarks.package (container_bytes_max and others), benchmarks.script (script_import_s),
benchmarks.start_up (help_s and others), benchmarks.launcher (detection_p99_s and others) and
benchmarks.serving (v1_throughput_ratio and others). Where there are GPUs, it also runs
benchmarks.parallel (fsdp2_tokens_s_gpu and others), benchmarks.checkpoint (checkpoint_stall_s and
others) and benchmarks.training (telemetry_ratio, jpeg_ratio and others). `--help` of each names all
of its figures.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.figures import parser


def main() -> None:
    parser("benchmarks", __doc__).parse_args()
    gpus = str(len(list(Path("/dev").glob("nvidia[0-9]*"))))
    with tempfile.TemporaryDirectory(prefix="kfp-pytorch-bench-") as folder:
        every = [["benchmarks.package"], ["benchmarks.script"], ["benchmarks.start_up"]]
        every += [["benchmarks.launcher"], ["benchmarks.serving"]]
        if gpus != "0":
            every += [
                ["benchmarks.parallel", "--gpus", gpus],
                ["benchmarks.checkpoint", "--gpus", gpus, "--output", folder],
                ["benchmarks.training", "telemetry", "jpeg", "input"],
            ]
        for words in every:
            subprocess.run([sys.executable, "-m", *words], check=True)
    if gpus == "0":
        print("no GPU is here: training over several was not measured", file=sys.stderr)


if __name__ == "__main__":
    main()
