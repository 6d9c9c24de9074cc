"""The predictor's program, whose model does as files in the folder of an environment variable say.

While there is a file `wait` it does not answer, and makes a file `waits`; while there is a file
`slow` it takes 50 ms; while there is a file `fail` it fails.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from kfp_pytorch.serving import __main__, predictor

FOLDER = Path(os.environ["STEERED_BY"])
call = predictor.Predictor._call


def steered(self: predictor.Predictor, rows: Any) -> Any:
    while (FOLDER / "wait").exists():
        (FOLDER / "waits").touch()
        time.sleep(0.005)
    if (FOLDER / "slow").exists():
        time.sleep(0.05)
    if (FOLDER / "fail").exists():
        raise RuntimeError("CUDA error: the device is lost")
    return call(self, rows)


predictor.Predictor._call = steered  # type: ignore[method-assign]
sys.exit(__main__.main())
