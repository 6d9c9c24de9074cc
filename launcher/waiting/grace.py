"""Remembers since when conditions hold, until one has held for too long. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Grace:
    """A time that conditions may hold.

    Attributes:
        seconds: How long each may hold.
    """

    seconds: float
    _since: dict[str, float] = field(default_factory=dict)
    _seen_at: float = 0.0

    def exceeded(self, holding: Iterable[str], now: float) -> str:
        """Return the first condition that has held for too long, or an empty string.

        `holding`: the conditions that hold now.
        """
        conditions, self._seen_at = list(holding), now
        self._since = {key: self._since.get(key, now) for key in conditions}
        late = (key for key in conditions if now - self._since[key] >= self.seconds)
        return next(late, "")

    def reset(self) -> None:
        """Begins at 0: an outage kept others from acting, and from being seen to act."""
        self._since = {}

    def next_deadline(self) -> float | None:
        """The time at which a condition that holds will have held for too long, or None."""
        due = (since + self.seconds for since in self._since.values())
        # What is due already has been judged, and did not end the wait.
        return min((at for at in due if at > self._seen_at), default=None)
