"""The kinds of jobs that have a component, by the name of its step."""

from __future__ import annotations

from kfp_pytorch.launcher.jobs.kind import JobKind
from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB

KINDS: dict[str, JobKind] = {"pytorch_job": PYTORCH_JOB}
