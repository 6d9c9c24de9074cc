"""Cron expressions are read as KFP's controller reads them."""

import itertools
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from kfp_pytorch.client import ClientError, cron

BERLIN = ZoneInfo("Europe/Berlin")
START = datetime(2026, 3, 28, 12, 0, 30, tzinfo=UTC)  # a Saturday


def due(text, zone=UTC, times=3, start=START):
    found = itertools.islice(cron.read(text).after(start, zone), times)
    return [time.strftime("%m-%d %H:%M:%S") for time in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Five fields are those of every other cron; KFP would read them as second, minute, …
        ("0 2 * * *", ["03-29 02:00:00", "03-30 02:00:00", "03-31 02:00:00"]),
        ("0 0 2 * * *", ["03-29 02:00:00", "03-30 02:00:00", "03-31 02:00:00"]),
        ("30 * * * * *", ["03-28 12:01:30", "03-28 12:02:30", "03-28 12:03:30"]),
        ("* * * * * *", ["03-28 12:00:31", "03-28 12:00:32", "03-28 12:00:33"]),
        ("*/20 9-10 * * mon-fri", ["03-30 09:00:00", "03-30 09:20:00", "03-30 09:40:00"]),
        ("0 50/5 23 28,31 MAR ?", ["03-28 23:50:00", "03-28 23:55:00", "03-31 23:50:00"]),
        ("@weekly", ["03-29 00:00:00", "04-05 00:00:00", "04-12 00:00:00"]),
        ("@monthly", ["04-01 00:00:00", "05-01 00:00:00", "06-01 00:00:00"]),
        # A day of the month or of the week, where both are given …
        ("0 0 1 * 1", ["03-30 00:00:00", "04-01 00:00:00", "04-06 00:00:00"]),
        # … and both, where one is a star, with a step too.
        ("0 0 */2 * 1", ["04-13 00:00:00", "04-27 00:00:00", "05-11 00:00:00"]),
        ("0 0 29 2 *", ["02-29 00:00:00"]),
    ],
)
def test_a_schedule_is_due(text, expected):
    assert due(text, times=len(expected)) == expected


def test_what_is_sent_has_six_fields():
    assert cron.read(" 0  2 * * * ").text == "0 0 2 * * *"
    assert cron.read("@daily").text == "0 0 0 * * *"
    assert cron.read("5 0 2 * * *").text == "5 0 2 * * *"


def test_a_time_that_the_clock_skips_is_left_out_and_one_that_it_has_twice_comes_twice():
    assert due("30 2 * * *", BERLIN, 2) == ["03-30 00:30:00", "03-31 00:30:00"]
    autumn = datetime(2026, 10, 24, 12, tzinfo=UTC)
    expected = ["10-25 00:30:00", "10-25 01:30:00", "10-26 01:30:00"]
    assert due("30 2 * * *", BERLIN, 3, autumn) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "has 1 fields; write five"),
        ("* * * * * * *", "has 7 fields"),
        ("60 * * * *", "minute is '60'; it takes numbers from 0 to 59"),
        ("0 0 * * 7", "day of the week is '7'; it takes numbers from 0 to 6, 0 for Sunday"),
        ("5-1 * * * *", "minute is '5-1'"),
        ("*/0 * * * *", "minute is '*/0'"),
        ("*/99999999999999999999 * * * *", "is no number"),
        ("*/\u0663 * * * *", "is no number"),
        ("a * * * *", "'a' is no number"),
        ("0 0 L * *", "'L' is no number"),
        ("0 0 * * 1#2", "'1#2' is no number"),
        (", * * * *", "'' is no number"),
        ("0 0 30 2 *", "is never due, and KFP would start a run at once, again and again"),
        ("@every 1h", "is an interval"),
        ("TZ=Europe/Berlin 0 2 * * *", "KFP takes no time zone with a schedule"),
        ("@noon", "has 1 fields"),
    ],
)
def test_what_kfp_would_not_take_or_take_amiss_is_refused(text, message):
    with pytest.raises(ClientError, match=None) as refused:
        cron.read(text)
    assert message in str(refused.value)
