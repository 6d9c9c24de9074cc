"""Starts runs on a KFP endpoint, each once, even where an answer is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Set
from datetime import UTC, datetime
from typing import Any

from kfp_pytorch.client import experiments, pages, pipelines, runs
from kfp_pytorch.client.connection import PATIENCE_S, Connection, Effect
from kfp_pytorch.client.errors import ClientError, UnknownOutcomeError
from kfp_pytorch.client.packages.find import Package
from kfp_pytorch.client.runs import Run

Object = dict[str, Any]


def start(
    connection: Connection,
    package: Package,
    arguments: Mapping[str, Any],
    *,
    name: str = "",
    experiment: str = "",
    pipeline_root: str = "",
    service_account: str = "",
) -> Run:
    """Starts a run of a package, by the version that it was uploaded as, if it was.

    `arguments`: checked ones. `experiment`: its name; it is made if there is none.
    Raises ClientError.
    """
    called = name or f"{package.pipeline_name} {datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
    settings = runs.settings(arguments, pipeline_root, service_account)
    body: Object = {
        "display_name": called,
        "experiment_id": experiments.id_of(connection, experiment),
        **settings,
        **_source(connection, package),
    }
    create = connection.client.runs.run_service_create_run
    before = {run.run_id for run in _called(connection, called)}
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            made = connection.call(create, run=body, effect=Effect.CREATES)
        except UnknownOutcomeError as error:
            made = _started(connection, called, before)
            if made is None and time.monotonic() > deadline:
                raise ClientError(f"The run could not be started: {error}.") from None
        if made is not None:
            return runs.run_of(connection, made)
        time.sleep(1.0)


def _source(connection: Connection, package: Package) -> Object:
    """How a run names its pipeline: as the version with this content, else with all of it."""
    version = pipelines.find_uploaded(connection, package)
    if version is not None:
        ids = {"pipeline_id": version.pipeline_id, "pipeline_version_id": version.version_id}
        return {"pipeline_version_reference": ids}
    if not package.platform:
        return {"pipeline_spec": package.spec}
    return {"pipeline_spec": {"pipeline_spec": package.spec, "platform_spec": package.platform}}


def _called(connection: Connection, name: str) -> Iterator[Any]:
    return runs.listed(connection, most=50, filter=pages.equals(name=name))


def _started(connection: Connection, name: str, before: Set[str]) -> Any:
    """The run that a call made whose answer was lost; None where there is none."""
    new = [run for run in _called(connection, name) if run.run_id not in before]
    if len(new) > 1:
        ids = ", ".join(str(run.run_id) for run in new)
        raise ClientError(
            f"The connection broke while the run was started, and KFP has {len(new)} new ones of "
            f"its name: {ids}. Look which is yours before you start another."
        )
    return new[0] if new else None
