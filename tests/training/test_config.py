from __future__ import annotations

import pytest

from kfp_pytorch.training import config
from kfp_pytorch.training.errors import ConfigError


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--seed=18446744073709551615", "--seed is 18446744073709551615; it must be at least 0"),
        ("--lr=1e308", "--lr is 1e+308; it must be above 0 and at most"),
        ("--lr=nan", "--lr is nan"),
        ("--weight-decay=1e300", "--weight-decay is 1e+300"),
        ("--collective-timeout=inf", "--collective-timeout is inf; it must be at least 1"),
        ("--skip-bad-steps=99999999999", "at most 1000000"),
        ("--workers=100000", "at most 1024"),
        ("--model=lm-tiny --seq-len=1", "--seq-len is 1; it must be at least 2"),
    ],
)
def test_a_number_beyond_what_a_run_can_count_is_refused_with_its_limits(arguments, words):
    with pytest.raises(ConfigError) as refused:
        config.parse(arguments.split())
    assert words in str(refused.value)
