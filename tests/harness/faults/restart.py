"""A server that restarts, as a Kubernetes API server does it: not all at once.

    api_server.restart()                             # from a test: begins, and returns at once
    api_server.restart(Restart(forbidden_s=2.5))     # with phases of other lengths

The phases, in this order: connections are reset and refused; every request gets 403, for roles are
not read yet; custom resources get 503, for their paths are not installed; every object gets 429,
for the storage is not ready. Until all this is over `/readyz` answers 403 and then 500. Watches and
followed logs that were open go on meanwhile; they end after `streams_s`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from harness.faults.actions import Answer, Call, Forbidden
from harness.faults.plan import Fault

_ACCOUNT = "system:serviceaccount:kubeflow:pipeline-runner"
_HEALTH = ("/healthz", "/livez", "/readyz")
_NO_PATHS = (
    "the request has been made before all known HTTP paths have been installed, please retry"
)
_UNREADY = "[-]poststarthook/rbac/bootstrap-roles failed: reason withheld\n{} check failed\n"


@dataclass(frozen=True)
class Restart:
    """How long each phase of a restart lasts; the default is 3 s as they were measured.

    Attributes:
        refused_s: Seconds in which connections are refused.
        forbidden_s: Seconds of 403.
        no_paths_s: Seconds of 503 for custom resources.
        storage_s: Seconds of 429.
        streams_s: Seconds from the beginning until open watches and logs end; a real server was
            seen to keep them for 39.
        account: The account that 403 names.
    """

    refused_s: float = 0.5
    forbidden_s: float = 1.5
    no_paths_s: float = 0.6
    storage_s: float = 0.4
    streams_s: float = 5.0
    account: str = _ACCOUNT

    @property
    def seconds(self) -> float:
        """Seconds from the beginning until every request is answered as before."""
        return self.refused_s + self.starting_s

    @property
    def starting_s(self) -> float:
        """Seconds in which the server listens and is not ready."""
        return self.forbidden_s + self.no_paths_s + self.storage_s

    def fault(self) -> Fault:
        """The answers of the server from when it listens again until it is ready."""
        return Fault(_Starting(self), times=None, for_s=self.starting_s)


@dataclass(frozen=True)
class _Starting:
    restart: Restart
    began: float = field(default_factory=time.monotonic)

    async def strike(self, call: Call) -> None:
        restart, path = self.restart, str(call.scope["path"])
        elapsed = time.monotonic() - self.began
        if elapsed < restart.forbidden_s:
            # Every second answer: whether a role or its binding is missing is a matter of chance.
            call.state["count"] = count = call.state.get("count", 0) + 1
            role = restart.account.rpartition(":")[2] if count % 2 == 0 else ""
            await Forbidden(restart.account, role).strike(call)
        elif path in _HEALTH:
            await Answer(500, body=_UNREADY.format(path[1:])).strike(call)
        elif elapsed < restart.forbidden_s + restart.no_paths_s:
            if _is_custom(path):
                await Answer(503, message=_NO_PATHS, retry_after=1).strike(call)
            else:
                await call.handle()
        elif path.startswith(("/api/", "/apis/")):
            await Answer(429, message="storage is (re)initializing", retry_after=1).strike(call)
        else:
            await call.handle()


def _is_custom(path: str) -> bool:
    """Whether a path is that of a custom resource: Kubernetes' own groups end in .k8s.io."""
    parts = path.split("/")
    return parts[1] == "apis" and "." in parts[2] and not parts[2].endswith(".k8s.io")
