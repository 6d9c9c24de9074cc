"""A plan is checked against the model that it splits."""

from __future__ import annotations

import pytest

from kfp_pytorch.training.errors import ConfigError
from kfp_pytorch.training.language.trainable import check_plan
from kfp_pytorch.training.language.transformer import TransformerConfig, preset
from kfp_pytorch.training.parallel.plan import ParallelPlan


@pytest.mark.parametrize(
    ("plan", "config", "microbatches", "words"),
    [
        (ParallelPlan(tp=3), preset("tiny"), 1, "heads=4 cannot be split over tp=3"),
        (
            ParallelPlan(tp=4),
            TransformerConfig(heads=4, hidden=190),
            1,
            "hidden=190 cannot be split over tp=4",
        ),
        (ParallelPlan(tp=4), TransformerConfig(vocab=257), 1, "vocab=257"),
        (ParallelPlan(tp=2), TransformerConfig(seq_len=63), 1, "seq_len=63"),
        (ParallelPlan(pp=5), preset("tiny"), 8, "4 layers cannot be split into pp=5 stages"),
        (ParallelPlan(pp=4), preset("tiny"), 2, "needs at least 4 microbatches"),
        (ParallelPlan(), preset("tiny"), 0, "microbatches is 0"),
    ],
)
def test_a_model_that_cannot_be_split_so_is_refused(plan, config, microbatches, words):
    with pytest.raises(ConfigError, match=words):
        check_plan(plan, config, microbatches)
