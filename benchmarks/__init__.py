"""Benchmarks of the launcher, of training and of serving."""

import sys
from pathlib import Path

# The server with faults is that of the tests, which import it as `harness`.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
