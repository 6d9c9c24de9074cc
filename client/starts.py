"""Starts runs on a KFP endpoint, each once, even where an answer is lost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from kfp_pytorch.client import experiments, pages, pipelines, runs
from kfp_pytorch.client.connection import PATIENCE_S, Connection, Effect
from kfp_pytorch.client.errors import ClientError, UnknownOutcomeError
from kfp_pytorch.client.packages.find import Package
from kfp_pytorch.client.runs import Run

Object = dict[str, Any]
# How far the server's clock may be behind.
_SKEW = timedelta(minutes=5)


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
    now = datetime.now(UTC)
    called = name or f"{package.pipeline_name} {now:%Y-%m-%d %H:%M:%S}"
    body: Object = {
        "display_name": called,
        "experiment_id": experiments.id_of(connection, experiment),
        "runtime_config": {"parameters": dict(arguments)},
        **_source(connection, package),
    }
    if pipeline_root:
        body["runtime_config"]["pipeline_root"] = pipeline_root
    if service_account:
        body["service_account"] = service_account
    create = connection.client.runs.run_service_create_run
    while True:
        try:
            made = connection.call(create, run=body, effect=Effect.CREATES)
        except UnknownOutcomeError as error:
            made = _started(connection, body, now)
            if made is None and datetime.now(UTC) - now > timedelta(seconds=PATIENCE_S):
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


def _started(connection: Connection, body: Object, since: datetime) -> Any:
    """The run that a call made whose answer was lost; None where there is none."""
    same = []
    for run in runs.listed(connection, most=50, filter=pages.equals(name=body["display_name"])):
        config = run.runtime_config
        given = (config.parameters if config else None) or {}
        if run.created_at >= since - _SKEW and given == body["runtime_config"]["parameters"]:
            same.append(run)
    if len(same) > 1:
        ids = ", ".join(str(run.run_id) for run in same)
        raise ClientError(
            f"The connection broke while the run was started, and KFP has {len(same)} of its name: "
            f"{ids}. Look which is yours before you start another."
        )
    return same[0] if same else None
