"""`kfp-pytorch schedule`: what a person and a program read."""

from __future__ import annotations

import pytest

NIGHTLY = ("schedule", "apply", "nightly", ":greeting", "-p", "name=you")


def test_a_schedule_says_how_its_cron_was_read_and_when_it_is_due(kfp):
    out = kfp(*NIGHTLY, "--cron", "0 2 * * *", "--time-zone", "Asia/Tokyo").stdout
    assert out.startswith("Schedule nightly is created: cron 0 0 2 * * *.\n")
    assert "Next, where KFP's time zone is Asia/Tokyo: " in out
    assert out.count("02:00:00 JST") == 3
    assert "KFP reads all schedules in one time zone, UTC unless" in out


def test_a_schedule_that_is_disabled_or_ends_says_so(kfp):
    out = kfp(*NIGHTLY, "--cron", "@yearly", "--end", "2999-01-01T00:00Z", "--disabled").stdout
    assert "until 2999-01-01T00:00:00Z" in out
    assert "starts no runs until `kfp-pytorch schedule enable nightly`" in out


def test_schedules_are_listed_switched_and_deleted(kfp, as_json):
    assert kfp("schedule", "list").stdout == "There are no schedules.\n"
    made = as_json(*NIGHTLY, "--every", "1h30m", "--max-concurrency", "2", "--catch-up")
    assert (made["every_s"], made["max_concurrency"], made["catch_up"]) == (5400, 2, True)
    assert as_json("schedule", "disable", "nightly")["change"] == "disabled"
    (line,) = kfp("schedule", "list").stdout.splitlines()[1:]
    assert line.split() == ["nightly", "disabled", "every", "1h30m", made["schedule_id"]]
    assert kfp("schedule", "enable", "nightly").stdout == "Schedule nightly is enabled.\n"
    assert as_json("schedule", "list")["schedules"][0]["enabled"]
    assert kfp("schedule", "delete", "nightly").stdout == "Schedule nightly is deleted.\n"
    assert as_json("schedule", "list") == {"schedules": []}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--every", "6"], "'6' is no duration, such as 30m"),
        (["--every", "0s"], "'0s' is no time at all"),
        (["--every", "\u0663h"], "is no duration, such as 30m"),
        (["--every", "1h", "--start", "tomorrow"], "is no time, such as"),
        (["--every", "1h", "--start", "2030-01-01T00:00"], "has no time zone"),
        (["--cron", "0 2 * * *", "--time-zone", "Mars"], "'Mars' is no time zone"),
        (["--every", "1h", "--max-concurrency", "11"], "11 is not in the range 1<=x<=10"),
    ],
)
def test_what_cannot_be_read_is_refused(kfp, server, options, message):
    assert message in kfp(*NIGHTLY, *options, code=2).stderr
    assert server.store.pipelines == {}
