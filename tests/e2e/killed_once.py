"""Runs a script as it stands, and at its first start kills rank 0 after the second checkpoint.

python killed_once.py SCRIPT [ARGUMENT...]
"""

import itertools
import os
import runpy
import signal
import sys
from pathlib import Path

from kfp_pytorch.training import script

MARK = Path(script.folder()) / "killed"
written = itertools.count(1)


def then_killed(save):
    def saved(*args, **kwargs):
        save(*args, **kwargs)
        if next(written) == 2 and script.rank() == 0 and not MARK.exists():
            MARK.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return saved


for name in ("save_checkpoint", "save_checkpoint_files"):
    setattr(script, name, then_killed(getattr(script, name)))
# What a launcher such as deepspeed adds comes before the script.
options = list(itertools.takewhile(lambda word: word.startswith("-"), sys.argv[1:]))
path, *arguments = sys.argv[1 + len(options) :]
sys.argv = [path, *options, *arguments]
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
