"""What importing kfp.dsl, as a step does, and the official client takes: resident memory in MB."""

from pathlib import Path

import kfp.dsl  # noqa: F401
import kubernetes.client
import kubernetes.config  # noqa: F401

status = Path("/proc/self/status").read_text().splitlines()
print(next(int(line.split()[1]) * 1024 / 1e6 for line in status if line.startswith("VmRSS:")))
