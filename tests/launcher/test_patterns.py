"""The tables of known words: their order decides."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import Phase, find, settings
from hypothesis.strategies import from_regex

import kfp_pytorch.launcher
from kfp_pytorch.launcher import patterns
from kfp_pytorch.launcher.diagnosis import causes, start_causes

FILE = Path(kfp_pytorch.launcher.__file__).parent / "advice.toml"
# What Hypothesis tries first is the simplest.
FIRST = settings(max_examples=1, phases=[Phase.generate], database=None)
TABLES = tomllib.loads(FILE.read_text())


def test_the_first_pattern_that_fits_counts_wherever_it_fits() -> None:
    match, advice = patterns.first("program", "Permission denied, after: No space left on device")
    assert match is not None
    assert (match[0], advice[:14]) == ("No space left on device", "A disk is full")


def test_each_pattern_that_fits_is_found_in_the_order_of_the_table() -> None:
    words = "1 node(s) had untolerated taint, 1 Insufficient memory, 2 Insufficient cpu"
    found = [match[0] for match, _ in patterns.every("node", words)]
    assert found == ["Insufficient memory", "untolerated taint"]


@pytest.mark.parametrize("table", TABLES)
def test_words_that_nobody_knows_have_no_advice(table: str) -> None:
    assert patterns.first(table, "all is well") == (None, "")
    assert patterns.advice(table, "") == ""


@pytest.mark.parametrize("table", TABLES)
def test_no_entry_stands_behind_one_that_takes_its_words(table: str) -> None:
    for entry in TABLES[table]:
        for word in entry["words"]:
            example = find(from_regex(word, fullmatch=True), lambda _: True, settings=FIRST)
            assert patterns.advice(table, example) == entry["advice"], (word, example)


@pytest.mark.parametrize("table", TABLES)
def test_every_entry_has_words_and_advice_in_one_paragraph(table: str) -> None:
    for entry in TABLES[table]:
        assert set(entry) == {"words", "advice"}
        assert "" not in entry["words"]
        assert entry["advice"] == " ".join(entry["advice"].split())


def test_a_program_and_a_pod_that_sigterm_ended_have_the_same_advice() -> None:
    told = patterns.advice("program", "SignalException: Process 1 got signal: 15")
    assert told == patterns.advice("exit_code", "143")


@pytest.mark.parametrize(
    ("table", "names"),
    [("waiting", start_causes._WAITING), ("end", causes._FIRST + causes._LIMITS)],
)
def test_each_name_that_the_causes_know_has_advice(table: str, names: Iterable[str]) -> None:
    assert [name for name in names if not patterns.advice(table, name)] == []
