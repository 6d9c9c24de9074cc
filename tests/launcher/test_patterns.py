"""The table of known words: its order decides."""

from __future__ import annotations

from kfp_pytorch.launcher import patterns

TABLE = (
    (r"CUDA out of memory", "the narrower"),
    (r"out of (\w+)", "the wider"),
)


def test_the_first_pattern_that_fits_counts_wherever_it_fits() -> None:
    assert patterns.advice(TABLE, "out of time, then CUDA out of memory") == "the narrower"
    match, advice = patterns.first(TABLE, "out of time")
    assert match is not None
    assert (match[1], advice) == ("time", "the wider")


def test_words_that_nobody_knows_have_no_advice() -> None:
    assert patterns.first(TABLE, "all is well") == (None, "")
    assert patterns.advice((), "out of memory") == ""
