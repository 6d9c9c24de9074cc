"""`kfp-pytorch schedule`: runs that KFP starts again and again."""

from __future__ import annotations

import itertools
import re
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from kfp_pytorch.cli.kfp.options import (
    connect,
    endpoint_of,
    endpoint_options,
    json_option,
    print_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from kfp_pytorch.client import Client, Schedule

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"(?:\d{1,9}[smhd])+", re.ASCII)
_SHOWN = 3


def _duration(text: str) -> int:
    if not _DURATION.fullmatch(text):
        raise click.BadParameter(f"{text!r} is no duration, such as 30m, 6h or 1d12h.")
    seconds = sum(int(n) * _UNITS[unit] for n, unit in re.findall(r"(\d+)([smhd])", text))
    if not seconds:
        raise click.BadParameter(f"{text!r} is no time at all: it must be 1s or more.")
    return seconds


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no time, such as 2027-01-31T08:00Z.") from None
    if time.tzinfo is None:
        raise click.BadParameter(f"{text!r} has no time zone: add Z, or such as +02:00.")
    return time


def _zone(text: str) -> tzinfo:
    try:
        # A slim image has no files of time zones.
        return UTC if text == "UTC" else ZoneInfo(text)
    except (OSError, ValueError, KeyError):
        raise click.BadParameter(f"{text!r} is no time zone, such as Europe/Berlin.") from None


@click.group("schedule")
def schedule() -> None:
    """Runs that KFP starts again and again."""


@schedule.command("apply", short_help="Make a schedule, or change it.")
@click.argument("name")
@click.argument("pipeline")
@click.option(
    "--cron",
    default="",
    metavar="EXPRESSION",
    help="When runs start: 'minute hour day month weekday', as '0 2 * * *'; with six fields the "
    "second is first.",
)
@click.option(
    "--every", "every_s", type=_duration, metavar="DURATION", help="In place of it, such as 6h."
)
@click.option(
    "--start", type=_time, metavar="TIME", help="No run starts before, such as 2027-01-31T08:00Z."
)
@click.option("--end", type=_time, metavar="TIME", help="No run starts after.")
@click.option(
    "--max-concurrency",
    type=click.IntRange(1, 10),
    default=1,
    show_default=True,
    help="How many of its runs there are at once.",
)
@click.option("--catch-up", is_flag=True, help="Make up for runs that were missed.")
@click.option("--disabled", is_flag=True, help="Start no runs until `schedule enable`.")
@click.option(
    "-p", "--parameter", "given", multiple=True, metavar="NAME=VALUE", help="Of its runs."
)
@click.option(
    "--parameters",
    "parameters_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A file with them, YAML or JSON; -p comes before it.",
)
@click.option("--experiment", default="", help="Of its runs; made if there is none.")
@click.option("--pipeline-root", default="", metavar="URI", help="Where KFP keeps artifacts.")
@click.option("--service-account", default="", help="Of the steps' pods.")
@click.option("--description", default="", help="For a person.")
@click.option(
    "--time-zone",
    "zone",
    type=_zone,
    metavar="ZONE",
    default="UTC",
    show_default=True,
    help="In which the next times are shown: KFP's own (CRON_SCHEDULE_TIMEZONE), which it does not "
    "tell. It changes nothing.",
)
@json_option
@endpoint_options
def apply(name: str, pipeline: str, **options: Any) -> None:
    """Make the schedule NAME of PIPELINE, or change it to this; what is just so is left alone.

    PIPELINE is named as for `run`, and uploaded. Runs of a schedule that is changed go on.
    """
    from kfp_pytorch.cli.kfp.parameters import arguments_of

    as_json, zone = options.pop("as_json"), options.pop("zone")
    given, file = options.pop("given"), options.pop("parameters_file")
    enabled = not options.pop("disabled")
    options["every_s"] = options["every_s"] or 0
    client = connect(endpoint_of(options))
    arguments = arguments_of(given, file)
    made = client.schedule(pipeline, name, arguments, enabled=enabled, **options)
    if as_json:
        print_json(made)
        return
    _tell(made, zone)


@schedule.command("list")
@json_option
@endpoint_options
def list_schedules(**options: Any) -> None:
    """List schedules, the newest first."""
    as_json = options.pop("as_json")
    found = connect(endpoint_of(options)).schedules()
    if as_json:
        print_json({"schedules": found})
        return
    from kfp_pytorch.cli.kfp import show

    click.echo(show.schedules(found) if found else "There are no schedules.")


@schedule.command("enable")
@click.argument("name")
@json_option
@endpoint_options
def enable(name: str, **options: Any) -> None:
    """Let the schedule NAME, or of an id, start runs."""
    _act(options, lambda client: client.enable_schedule(name), "enabled")


@schedule.command("disable")
@click.argument("name")
@json_option
@endpoint_options
def disable(name: str, **options: Any) -> None:
    """Let the schedule NAME, or of an id, start no further runs."""
    _act(options, lambda client: client.disable_schedule(name), "disabled")


@schedule.command("delete")
@click.argument("name")
@click.option("--with-runs", is_flag=True, help="End its runs that go on.")
@json_option
@endpoint_options
def delete(name: str, with_runs: bool, **options: Any) -> None:
    """Delete the schedule NAME, or of an id; its runs go on."""
    _act(options, lambda client: client.delete_schedule(name, with_runs=with_runs), "deleted")


def _act(options: dict[str, Any], ask: Callable[[Client], Schedule], done: str) -> None:
    as_json = options.pop("as_json")
    made = ask(connect(endpoint_of(options)))
    print_json(made) if as_json else click.echo(f"Schedule {made.name} is {done}.")


def _tell(made: Schedule, zone: tzinfo) -> None:
    """Says what was done, and when the next runs start."""
    from kfp_pytorch.cli.kfp import show
    from kfp_pytorch.client import cron

    click.echo(f"Schedule {made.name} is {made.change}: {show.when(made)}.")
    if made.cron:
        start = max(datetime.now(UTC), made.start or datetime.now(UTC))
        times = itertools.islice(cron.read(made.cron).after(start, zone), _SHOWN)
        due = [time.astimezone(zone) for time in times if made.end is None or time <= made.end]
        shown = [f"{time:%a %Y-%m-%d %H:%M:%S %Z}" for time in due]
        click.echo(
            f"Next, where KFP's time zone is {zone}: {', '.join(shown) or 'never'}. KFP reads "
            "all schedules in one time zone, UTC unless its administrator chose another."
        )
    if not made.enabled:
        click.echo(f"It starts no runs until `kfp-pytorch schedule enable {made.name}`.")
    if made.url:
        click.echo(made.url)
