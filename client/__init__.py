"""KFP from the author's Python and for the command: pipelines uploaded, run and scheduled.

May import kfp, and everything but cli, training and serving.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kfp_pytorch.client.client import Client
    from kfp_pytorch.client.connection import Endpoint
    from kfp_pytorch.client.errors import (
        ClientError,
        ConflictError,
        NotFoundError,
        RefusedError,
    )
    from kfp_pytorch.client.nodes import Step
    from kfp_pytorch.client.pipelines import Version
    from kfp_pytorch.client.runs import Run
    from kfp_pytorch.client.schedules import Schedule

_MODULES = {
    "Client": "client",
    "ClientError": "errors",
    "ConflictError": "errors",
    "Endpoint": "connection",
    "NotFoundError": "errors",
    "RefusedError": "errors",
    "Run": "runs",
    "Schedule": "schedules",
    "Step": "nodes",
    "Version": "pipelines",
}

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


def __getattr__(name: str) -> Any:
    # A command that only reads a package does not wait for the import of the rest.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
