from __future__ import annotations

from kfp_pytorch.launcher.waiting.logs import NewLines, read_timestamp

A, B, C = (f"2025-11-27T12:00:0{n}.5Z" for n in range(3))


def test_a_resumed_stream_repeats_no_line_and_loses_none() -> None:
    new_lines = NewLines()
    assert list(new_lines.filter([f"{A} one", f"{B} two", f"{B} two"])) == ["one", "two", "two"]
    assert new_lines.since == "2025-11-27T12:00:01Z"
    again = [f"{B} two", f"{B} two", f"{B} three", f"{C} four"]
    assert list(new_lines.filter(again)) == ["three", "four"]
    assert list(new_lines.filter([f"{C} four", f"{C} five"])) == ["five"]


def test_a_stream_that_is_resumed_twice_without_news_shows_nothing() -> None:
    new_lines = NewLines()
    list(new_lines.filter([f"{A} one", f"{A} one"]))
    for _ in range(3):
        assert list(new_lines.filter([f"{A} one", f"{A} one"])) == []
    assert list(new_lines.filter([f"{A} one", f"{A} one", f"{A} one"])) == ["one"]


def test_within_one_stream_nothing_is_dropped_whatever_its_times() -> None:
    lines = [f"{B} later", f"{A} earlier", "no time at all", f"{B} later"]
    assert list(NewLines().filter(lines)) == ["later", "earlier", "no time at all", "later"]


def test_times_compare_by_moment_and_to_the_nanosecond() -> None:
    assert read_timestamp("2025-11-27T12:00:00.5Z") == read_timestamp(
        "2025-11-27T14:00:00.500+02:00"
    )
    one, two = (read_timestamp(f"2025-11-27T12:00:00.00000000{n}Z") for n in (1, 2))
    assert one is not None
    assert two is not None
    assert one < two
    for rubbish in ("", "Epoch", "2025-11-27", "2025-11-27T12:00:00"):
        assert read_timestamp(rubbish) is None


def test_a_line_keeps_its_blanks_and_may_be_empty() -> None:
    assert list(NewLines().filter([f"{A}   indented", f"{B} ", C])) == ["  indented", "", ""]


def test_the_rest_of_a_line_within_which_a_stream_ended_is_shown() -> None:
    new_lines = NewLines()
    assert list(new_lines.filter([f"{A} one", f"{B} tw"])) == ["one", "tw"]
    assert list(new_lines.filter([f"{B} two", f"{B} three"])) == ["o", "three"]
    assert list(new_lines.filter([f"{B} two", f"{B} three"])) == []
