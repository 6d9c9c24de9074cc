"""Whether a 403 means that a permission is missing. No I/O.

An API server that starts answers 403 to all clients until it has read the roles, for seconds, and
`/readyz` is not 200 meanwhile.
"""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass

from kfp_pytorch.launcher.kubernetes.api_errors import Call

# In seconds. Where `/readyz` may not be read, a 403 that lasts so long does not come of a start.
MISSING_AFTER = 30.0
# A repeated 403 of a server that is ready counts no sooner: requests of one moment count once.
_REPEATED_AFTER = 0.5
# Denials that are further apart than this, in seconds, are unrelated.
_FORGOTTEN_AFTER = 120.0


class Readiness(enum.Enum):
    """The answer of `/readyz`."""

    READY = enum.auto()
    STARTING = enum.auto()
    UNREADABLE = enum.auto()


@dataclass
class _Denials:
    """403s of one call in a row; times are of the monotonic clock."""

    since: float  # when the first came
    last: float  # when the last came
    while_ready: int = 0  # how many came while the server was ready


class Permissions:
    """Which calls a server has allowed and denied; shared by the connections to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._allowed: set[Call] = set()
        self._denied: dict[Call, _Denials] = {}

    @property
    def any_allowed(self) -> bool:
        """Whether the server has ever accepted the credentials."""
        return bool(self._allowed)

    def allow(self, call: Call) -> None:
        """Notes that a call was allowed."""
        with self._lock:
            self._allowed.add(call)
            self._denied.pop(call, None)

    def was_allowed(self, call: Call) -> bool:
        """Whether a call was ever allowed: then a 403 is always retried."""
        return call in self._allowed

    def is_missing(
        self, call: Call, readiness: Readiness, now: float, missing_after: float = MISSING_AFTER
    ) -> bool:
        """Notes a 403 and decides whether it is final.

        `readiness`: the answer of `/readyz` after the 403; `now`: the time, by the monotonic clock;
        `missing_after`: how long a 403 must last where `/readyz` may not be read, in seconds.
        Returns whether the permission is missing.
        """
        with self._lock:
            denials = self._denied.get(call)
            if denials is None or now - denials.last > _FORGOTTEN_AFTER:
                denials = self._denied[call] = _Denials(now, now)
            denials.last = now
            lasted = now - denials.since
            if readiness is Readiness.READY:
                denials.while_ready += 1
                return denials.while_ready > 1 and lasted >= _REPEATED_AFTER
            denials.while_ready = 0
            return readiness is Readiness.UNREADABLE and lasted >= missing_after
