"""Errors that a user can act on; their text says what to do."""

from __future__ import annotations

_SHOWN_NAMES = 5


class TrainingError(Exception):
    """Training cannot be done as requested; the message says why and what to do."""


class ConfigError(TrainingError):
    """An argument or environment variable has a value that cannot work."""


class DataError(TrainingError):
    """A data set is missing, or does not fit the arguments."""


class StorageError(TrainingError):
    """A folder cannot be read or written."""


class UnavailableError(TrainingError):
    """A store is unavailable for now: the same start may work later."""


class StoreUnavailableError(StorageError, UnavailableError):
    """A folder is unavailable for now."""


class DataUnavailableError(DataError, UnavailableError):
    """A data set is unavailable for now."""


class CheckpointError(TrainingError):
    """No checkpoint that exists can be used."""


class ExportError(TrainingError):
    """A model cannot be exported, or its export is not there any more."""


class DivergedError(TrainingError):
    """The loss is no longer a finite number."""


class PeerLostError(TrainingError):
    """Another rank is lost, and training cannot continue without it."""


class RankHungError(TrainingError):
    """A rank makes no progress, and all others wait for it."""


class Stopped(Exception):
    """All ranks agreed to stop; a checkpoint was saved."""


def some(names: list[str]) -> str:
    """The first few of many names, for a message."""
    if not names:
        return "none"
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(names[:_SHOWN_NAMES]) + more
