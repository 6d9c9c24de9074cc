"""Experiments, which KFP groups runs by."""

from __future__ import annotations

import os
from typing import Any

from kfp_pytorch.client import pages
from kfp_pytorch.client.connection import Connection, Effect
from kfp_pytorch.client.errors import (
    ClientError,
    ConflictError,
    NotFoundError,
    UnknownOutcomeError,
)

# As `kfp.Client` has it.
_NAME_ENV, _USUAL = "KF_PIPELINES_DEFAULT_EXPERIMENT_NAME", "Default"
_LONGEST = 128


def id_of(connection: Connection, name: str, *, make: bool = True) -> str:
    """The id of the experiment of a name; of the usual one where the name is empty.

    `make`: whether to make it if there is none.
    Raises ClientError: it is archived, and KFP starts no run in it. Raises NotFoundError.
    """
    name = name or os.environ.get(_NAME_ENV, "") or _USUAL
    found = _named(connection, name)
    if found is None and not make:
        raise NotFoundError(f"There is no experiment {name!r}.")
    if found is None:
        found = _made(connection, name)
    if make and str(found.storage_state) == "ARCHIVED":
        raise ClientError(
            f"The experiment {name!r} is archived. Restore it in KFP's UI, or name another."
        )
    return str(found.experiment_id)


def _named(connection: Connection, name: str) -> Any:
    method = connection.client.experiments.experiment_service_list_experiments
    by = pages.equals(name=name)
    found = pages.every(connection, method, "experiments", filter=by, **connection.within)
    return next(iter(found), None)


def _made(connection: Connection, name: str) -> Any:
    if len(name) > _LONGEST:
        raise ClientError(f"The experiment's name is {name!r}; KFP takes {_LONGEST} characters.")
    body = {"display_name": name, **connection.within}
    create = connection.client.experiments.experiment_service_create_experiment
    try:
        return connection.call(create, experiment=body, effect=Effect.CREATES)
    except (ConflictError, UnknownOutcomeError) as error:
        # Somebody was faster, or the answer was lost.
        found = _named(connection, name)
        if found is None:
            raise ClientError(f"The experiment {name!r} could not be made: {error}.") from None
        return found
