"""Errors that are the user's to act on; their text says what to do."""

from __future__ import annotations

_SHOWN_NAMES = 5


class TrainingError(Exception):
    """What was asked for cannot be done; the message says why and what to do."""


class ConfigError(TrainingError):
    """An argument or environment variable has a value that cannot work."""


class DataError(TrainingError):
    """A data set is not there, or does not fit what was asked of it."""


class StorageError(TrainingError):
    """A folder cannot be read or written."""


class AwayError(TrainingError):
    """A store does not answer for now: the same start may work later."""


class StoreAwayError(StorageError, AwayError):
    """A folder cannot be read or written for now."""


class DataAwayError(DataError, AwayError):
    """A data set cannot be read for now."""


class CheckpointError(TrainingError):
    """A checkpoint cannot be used, or none of those that are there can."""


class DivergedError(TrainingError):
    """The loss is no longer a finite number."""


class PeerLostError(TrainingError):
    """Another rank has gone, and training cannot go on without it."""


class RankHungError(TrainingError):
    """A rank makes no progress, and all others wait for it."""


class Stopped(Exception):
    """All ranks agreed to stop; what they had done is saved."""


def some(names: list[str]) -> str:
    """The first few of many names, for a message."""
    if not names:
        return "none"
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(names[:_SHOWN_NAMES]) + more
