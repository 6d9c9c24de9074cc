"""KFP from the author's Python and for the command: pipelines uploaded, run and scheduled.

May import kfp, and everything but cli, training and serving.
"""

from kfp_pytorch.client.client import Client
from kfp_pytorch.client.connection import Endpoint
from kfp_pytorch.client.errors import ClientError, ConflictError, NotFoundError, RefusedError
from kfp_pytorch.client.nodes import Step
from kfp_pytorch.client.pipelines import Version
from kfp_pytorch.client.runs import Run
from kfp_pytorch.client.schedules import Schedule

__all__ = [
    "Client",
    "ClientError",
    "ConflictError",
    "Endpoint",
    "NotFoundError",
    "RefusedError",
    "Run",
    "Schedule",
    "Step",
    "Version",
]
