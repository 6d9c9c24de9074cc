"""Pipelines on a KFP endpoint from a terminal: upload, run, schedule, and the runs there.

May import `runs` for how runs are shown, and `kfp_pytorch.client`, when a command runs.
"""

from kfp_pytorch.cli.kfp.runs import runs
from kfp_pytorch.cli.kfp.schedule import schedule
from kfp_pytorch.cli.kfp.upload import upload

__all__ = ["runs", "schedule", "upload"]
