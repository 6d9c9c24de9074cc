"""Cron expressions as KFP reads them: six fields, the first of them seconds.

As robfig/cron 1.2 has it, which KFP's API server and its controller of schedules use:
https://github.com/robfig/cron/blob/v1.2.0/parser.go
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo

from kfp_pytorch.client.errors import ClientError

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
# Of each field its name, its least and its greatest value, and the names of values.
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("second", 0, 59, {}),
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    ("day of the week", 0, 6, {name: number for number, name in enumerate(_DAYS)}),
)
_NAMED = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}
_ITEM = re.compile(r"(?P<first>[*?]|\w+)(?:-(?P<last>\w+))?(?:/(?P<step>[0-9]{1,9}))?")
_DAYS_AHEAD = 5 * 366


@dataclass(frozen=True)
class Cron:
    """When a schedule is due.

    Attributes:
        text: The six fields, as KFP gets them.
        values: The values of each field.
        any_day: Whether the day of the month, or that of the week, is `*` or `?`; a day then has to
            fit both, else one of the two.
    """

    text: str
    values: tuple[frozenset[int], ...]
    any_day: bool

    def after(self, start: datetime, zone: tzinfo) -> Iterator[datetime]:
        """The times after `start` at which it is due, in UTC, by the clock of a time zone.

        A time that the clock skips in spring is left out, and one that it has twice comes twice.
        """
        local = start.astimezone(zone)
        for ahead in range(_DAYS_AHEAD):
            day = local.date() + timedelta(days=ahead)
            if self._is_due_on(day):
                times = self._times(day, zone, local.hour if ahead == 0 else 0)
                yield from (time for time in times if time > start)

    def _is_due_on(self, day: date) -> bool:
        _, _, _, of_month, months, of_week = self.values
        fits = (day.day in of_month, day.isoweekday() % 7 in of_week)
        return day.month in months and (all(fits) if self.any_day else any(fits))

    def _times(self, day: date, zone: tzinfo, first_hour: int) -> Iterator[datetime]:
        seconds, minutes, hours = (sorted(values) for values in self.values[:3])
        for hour in (hour for hour in hours if hour >= first_hour):
            found = set()
            for minute, second, fold in itertools.product(minutes, seconds, (0, 1)):
                local = datetime(*day.timetuple()[:3], hour, minute, second, tzinfo=zone, fold=fold)
                time = local.astimezone(UTC)
                # A time that the clock skips would come out as another.
                if time.astimezone(zone).timetuple()[:6] == local.timetuple()[:6]:
                    found.add(time)
            yield from sorted(found)


def read(text: str) -> Cron:
    """Reads a cron expression of five or six fields; with five, the second is 0.

    KFP itself takes five fields for second, minute, hour, day and month.
    Raises ClientError: KFP would not take it, or it is never due.
    """
    given = " ".join(text.split())
    if given.startswith("@every"):
        raise ClientError(f"{text!r} is an interval: give it as one (--every).")
    if re.match(r"(CRON_)?TZ=", given):
        raise ClientError(
            f"{text!r}: KFP takes no time zone with a schedule. All of them are read in the one "
            "that its administrator chose (CRON_SCHEDULE_TIMEZONE), UTC by default."
        )
    fields = _NAMED.get(given, given).split()
    if len(fields) == 5:
        fields = ["0", *fields]
    if len(fields) != 6:
        raise ClientError(
            f"The cron expression {text!r} has {len(fields)} fields; write five (minute, hour, day "
            "of the month, month, day of the week), such as '0 2 * * *' for 02:00 each day, or six "
            "with the second first."
        )
    values = tuple(_values(field, index) for index, field in enumerate(fields))
    any_day = any(item[0] in "*?" for field in fields[3:6:2] for item in field.split(","))
    found = Cron(" ".join(fields), values, any_day)
    if next(found.after(datetime.now(UTC), UTC), None) is None:
        raise ClientError(
            f"The cron expression {text!r} is never due, and KFP would start a run at once, again "
            "and again."
        )
    return found


def _values(field: str, index: int) -> frozenset[int]:
    name, least, most, names = _FIELDS[index]
    found: set[int] = set()
    for item in field.split(","):
        match = _ITEM.fullmatch(item)
        if not match:
            raise ClientError(f"The cron expression's {name} is {field!r}: {item!r} is no number.")
        first, last, step = match["first"], match["last"], int(match["step"] or 1)
        if first in "*?":
            low, high = least, most
        else:
            low = _number(first, names, name, field)
            high = _number(last, names, name, field) if last else (most if match["step"] else low)
        if not least <= low <= high <= most or step < 1:
            raise ClientError(
                f"The cron expression's {name} is {field!r}; it takes numbers from {least} to "
                + (f"{most}, 0 for Sunday." if index == 5 else f"{most}.")
            )
        found |= set(range(low, high + 1, step))
    return frozenset(found)


def _number(text: str, names: dict[str, int], name: str, field: str) -> int:
    if text.lower() in names:
        return names[text.lower()]
    if text.isascii() and text.isdigit():
        return int(text)
    raise ClientError(f"The cron expression's {name} is {field!r}: {text!r} is no number.")
