"""A process of a script of somebody's own, as `python script.py` would run it.

Run by `runpy` in a process that has torch already, with these names given to it.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import threading

import torch

from kfp_pytorch.training.entry.rank_records import exit_now

given = globals()
os.environ.update(given["environ"])
descriptor = os.open(given["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.dup2(descriptor, 1)
os.dup2(descriptor, 2)
sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
torch.set_num_threads(1)


def follow(tests) -> None:
    """Ends as soon as the tests have ended, even if they were killed."""
    tests.join()
    exit_now(1)


threading.Thread(target=follow, args=(multiprocessing.parent_process(),), daemon=True).start()
path, *sys.argv[1:] = given["arguments"]
try:
    runpy.run_path(path, run_name="__main__")
except Exception:
    # As the interpreter does with what nothing catches; `multiprocessing` does not.
    sys.excepthook(*sys.exc_info())
    sys.exit(1)
