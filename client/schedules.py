"""Schedules, which KFP calls recurring runs: made or changed by name, and switched on and off.

KFP lets several have one name, and cannot change one. Here a name is that of one schedule in a
namespace; a change makes a new one and then deletes the old one, whose runs go on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kfp_pytorch.client import experiments, pages, pipelines, runs
from kfp_pytorch.client.connection import Connection, Effect
from kfp_pytorch.client.cron import Cron
from kfp_pytorch.client.errors import ClientError, NotFoundError, UnknownOutcomeError
from kfp_pytorch.client.packages.find import Package

Object = dict[str, Any]
# Older servers delete the runs of a schedule with it, those that run too.
_ORPHANS_SINCE = (2, 16)
_MOST_AT_ONCE = 10
_LONGEST_S = 10 * 366 * 86_400
_MARK = "kfp-pytorch "


@dataclass(frozen=True)
class Trigger:
    """When runs start: by a cron expression or an interval, one of both.

    Attributes:
        cron: The cron expression; None for an interval.
        every_s: The interval, in seconds; 0 for a cron expression.
        start: Before that no run starts.
        end: After that no run starts.
    """

    cron: Cron | None = None
    every_s: int = 0
    start: datetime | None = None
    end: datetime | None = None

    def __post_init__(self) -> None:
        if (self.cron is None) == (self.every_s == 0):
            raise ClientError("A schedule has a cron expression or an interval: give one of both.")
        if self.cron is None and not 1 <= self.every_s <= _LONGEST_S:
            raise ClientError(
                f"The interval is {self.every_s} s; it must be from 1 s to {_LONGEST_S:,} s, 10 "
                "years."
            )
        for name, time in (("start", self.start), ("end", self.end)):
            if time is not None:
                _check_time(name, time)
        if self.end and self.end <= max(
            datetime.now(UTC), self.start or self.end.min.replace(tzinfo=UTC)
        ):
            raise ClientError(f"The end {self.end.isoformat()} is past, or not after the start.")

    def body(self) -> Object:
        """It as KFP takes it."""
        times = {
            name: time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            for name, time in (("start_time", self.start), ("end_time", self.end))
            if time
        }
        if self.cron is not None:
            return {"cron_schedule": {"cron": self.cron.text, **times}}
        return {"periodic_schedule": {"interval_second": str(self.every_s), **times}}


def _check_time(name: str, time: datetime) -> None:
    if time.tzinfo is None:
        raise ClientError(
            f"The {name} {time.isoformat()} has no time zone: add Z, or such as +02:00."
        )
    try:
        time.astimezone(UTC)
    except OverflowError:
        raise ClientError(
            f"The {name} {time.isoformat()} is not between the years 1 and 9999 in UTC."
        ) from None


@dataclass(frozen=True)
class Schedule:
    """A schedule as KFP knows it.

    Attributes:
        schedule_id: Its id.
        name: Its name.
        enabled: Whether it starts runs.
        cron: Its cron expression; empty for an interval.
        every_s: Its interval, in seconds; 0 for a cron expression.
        start: Before that no run starts.
        end: After that no run starts.
        max_concurrency: How many of its runs there are at once.
        catch_up: Whether runs that were missed, as while it was disabled, are made up for.
        experiment_id: The id of the experiment of its runs.
        created: When it was made.
        change: What `apply` did: `created`, `replaced`, `enabled`, `disabled`, `unchanged`; empty
            for one that was only looked at.
        url: Its page in KFP's UI; empty where the UI's address is not known.
    """

    schedule_id: str
    name: str
    enabled: bool
    cron: str
    every_s: int
    start: datetime | None
    end: datetime | None
    max_concurrency: int
    catch_up: bool
    experiment_id: str
    created: datetime | None
    change: str = ""
    url: str = ""


def apply(
    connection: Connection,
    package: Package,
    arguments: Mapping[str, Any],
    name: str,
    trigger: Trigger,
    *,
    max_concurrency: int = 1,
    catch_up: bool = False,
    enabled: bool = True,
    experiment: str = "",
    pipeline_root: str = "",
    service_account: str = "",
    description: str = "",
) -> Schedule:
    """Makes the schedule of a name, or changes it to this; one that is just so is left alone.

    The package is uploaded, unless its content is there already. Runs of a schedule that is changed
    go on. Raises ClientError.
    """
    if not name.strip():
        raise ClientError("The schedule needs a name.")
    if not 1 <= max_concurrency <= _MOST_AT_ONCE:
        raise ClientError(
            f"max_concurrency is {max_concurrency}; it must be from 1 to {_MOST_AT_ONCE}."
        )
    settings = runs.settings(arguments, pipeline_root, service_account)
    before = _named(connection, name)
    version = pipelines.upload(connection, package)
    body: Object = {
        "display_name": name,
        "experiment_id": experiments.id_of(connection, experiment),
        "pipeline_version_reference": {
            "pipeline_id": version.pipeline_id,
            "pipeline_version_id": version.version_id,
        },
        **settings,
        "trigger": trigger.body(),
        "max_concurrency": str(max_concurrency),
        "no_catchup": not catch_up,
    }
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:12]
    body["description"] = f"{description}\n\n{_MARK}{digest}".strip()
    body["mode"] = "ENABLE" if enabled else "DISABLE"
    if before and str(before.description or "").endswith(f"{_MARK}{digest}"):
        return _switched(connection, before, enabled=enabled)
    if before is None:
        return _schedule(connection, _create(connection, body), "created")
    return _schedule(connection, _replace(connection, before, body), "replaced")


def get(connection: Connection, asked: str) -> Schedule:
    """The schedule of a name or an id. Raises NotFoundError, ClientError."""
    return _schedule(connection, _find(connection, asked))


def listed(connection: Connection) -> list[Schedule]:
    """All schedules, the newest first."""
    return [_schedule(connection, found) for found in _every(connection)]


def switch(connection: Connection, asked: str, *, enabled: bool) -> Schedule:
    """Enables or disables the schedule of a name or an id; runs that it has started go on."""
    return _switched(connection, _find(connection, asked), enabled=enabled)


def delete(connection: Connection, asked: str, *, with_runs: bool = False) -> Schedule:
    """Deletes the schedule of a name or an id.

    `with_runs`: whether its runs' Workflows are deleted with it, those that run included.
    Raises ClientError: KFP is too old to keep those that run.
    """
    found = _find(connection, asked)
    _delete(connection, found, with_runs=with_runs)
    return _schedule(connection, found)


def _switched(connection: Connection, found: Any, *, enabled: bool) -> Schedule:
    if (str(found.mode) == "ENABLE") == enabled:
        return _schedule(connection, found, "unchanged")
    _set_mode(connection, found.recurring_run_id, enabled=enabled)
    read = connection.client.recurring_runs.recurring_run_service_get_recurring_run
    now = connection.call(read, recurring_run_id=found.recurring_run_id)
    return _schedule(connection, now, "enabled" if enabled else "disabled")


def _set_mode(connection: Connection, key: str, *, enabled: bool) -> None:
    api = connection.client.recurring_runs
    method = (
        api.recurring_run_service_enable_recurring_run
        if enabled
        else api.recurring_run_service_disable_recurring_run
    )
    connection.call(method, recurring_run_id=key, effect=Effect.ACTS)


def _replace(connection: Connection, before: Any, body: Object) -> Any:
    """Makes the new schedule, then deletes the old one; at no time are both enabled."""
    _check_kept(connection, before)
    was_enabled = str(before.mode) == "ENABLE"
    if was_enabled:
        _set_mode(connection, before.recurring_run_id, enabled=False)
    try:
        made = _create(connection, body, but=before.recurring_run_id)
    except ClientError:
        if was_enabled:
            _set_mode(connection, before.recurring_run_id, enabled=True)
        raise
    _delete(connection, before)
    return made


def _create(connection: Connection, body: Object, but: str = "") -> Any:
    create = connection.client.recurring_runs.recurring_run_service_create_recurring_run
    try:
        return connection.call(create, recurring_run=body, effect=Effect.CREATES)
    except UnknownOutcomeError as error:
        for found in _every(connection, filter=pages.equals(name=body["display_name"])):
            if found.recurring_run_id != but and found.description == body["description"]:
                return found
        raise ClientError(
            f"The schedule {body['display_name']!r} could not be made: {error}. Try again."
        ) from None


def _delete(connection: Connection, found: Any, *, with_runs: bool = False) -> None:
    if not with_runs:
        _check_kept(connection, found)
    remove = connection.client.recurring_runs.recurring_run_service_delete_recurring_run
    policy: Object = {} if with_runs else {"propagation_policy": "ORPHAN"}
    try:
        connection.call(
            remove, recurring_run_id=found.recurring_run_id, effect=Effect.ACTS, **policy
        )
    except NotFoundError:
        # An answer was lost, and the call made again.
        return


def _check_kept(connection: Connection, found: Any) -> None:
    """Refuses what would end runs, where KFP is too old to keep them."""
    if connection.version_info >= _ORPHANS_SINCE:
        return
    of_it = runs.newest(connection, schedule=found.recurring_run_id)
    going = [run.run_id for run in of_it if not run.ended]
    if going:
        raise ClientError(
            f"KFP {connection.version} deletes the runs of a schedule with it, and "
            f"{', '.join(going)} of {found.display_name!r} goes on. Wait for its end, or terminate "
            "it (`kfp-pytorch runs terminate`). KFP keeps such runs from 2.16 on."
        )


def _find(connection: Connection, asked: str) -> Any:
    if not asked.strip():
        raise ClientError("The schedule has no name: give its name or its id.")
    found = _named(connection, asked)
    if found is not None:
        return found
    read = connection.client.recurring_runs.recurring_run_service_get_recurring_run
    try:
        return connection.call(read, recurring_run_id=asked)
    except NotFoundError:
        names = sorted({str(each.display_name) for each in _every(connection)})
        raise NotFoundError(
            f"There is no schedule {asked!r}. There are: {', '.join(names) or 'none'}."
        ) from None


def _named(connection: Connection, name: str) -> Any:
    """The one schedule of a name; None where there is none."""
    found = list(_every(connection, filter=pages.equals(name=name)))
    if len(found) > 1:
        ids = ", ".join(str(each.recurring_run_id) for each in found)
        raise ClientError(
            f"{len(found)} schedules are called {name!r}: {ids}. Delete by their ids those that "
            "are not wanted: `kfp-pytorch schedule delete ID`."
        )
    return found[0] if found else None


def _every(connection: Connection, **query: Any) -> list[Any]:
    method = connection.client.recurring_runs.recurring_run_service_list_recurring_runs
    query |= {"sort_by": "created_at desc", **connection.within}
    return list(pages.every(connection, method, "recurring_runs", **query))


def _schedule(connection: Connection, found: Any, change: str = "") -> Schedule:
    cron, periodic = found.trigger.cron_schedule, found.trigger.periodic_schedule
    when = cron or periodic
    return Schedule(
        schedule_id=str(found.recurring_run_id),
        name=str(found.display_name),
        enabled=str(found.mode) == "ENABLE",
        cron=str(cron.cron) if cron else "",
        every_s=int(periodic.interval_second) if periodic else 0,
        start=when.start_time if when else None,
        end=when.end_time if when else None,
        max_concurrency=int(found.max_concurrency or 1),
        catch_up=not found.no_catchup,
        experiment_id=str(found.experiment_id or ""),
        created=found.created_at,
        change=change,
        url=connection.link(f"recurringrun/details/{found.recurring_run_id}"),
    )
