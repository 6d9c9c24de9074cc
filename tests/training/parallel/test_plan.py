"""Plans: how they are read, what they refuse, and which ranks they put where."""

from __future__ import annotations

import pytest

from kfp_pytorch.training.errors import ConfigError
from kfp_pytorch.training.parallel.pipeline import stage_layers
from kfp_pytorch.training.parallel.plan import ParallelPlan


@pytest.mark.parametrize(
    ("text", "world", "expected"),
    [
        ("ddp", 4, ParallelPlan(ddp=4)),
        ("ddp", 1, ParallelPlan()),
        ("fsdp2", 4, ParallelPlan(fsdp2=4, sharded=True)),
        ("fsdp2", 1, ParallelPlan(sharded=True)),
        ("tp", 2, ParallelPlan(tp=2)),
        ("pp", 2, ParallelPlan(pp=2)),
        ("fsdp2=2,tp=2", 4, ParallelPlan(fsdp2=2, tp=2, sharded=True)),
        ("fsdp2, tp = 2", 8, ParallelPlan(fsdp2=4, tp=2, sharded=True)),
        ("pp=2,ddp", 8, ParallelPlan(pp=2, ddp=4, sharded=True)),
        ("ddp=2,fsdp2=2,tp=2,pp=2", 16, ParallelPlan(2, 2, 2, 2, sharded=True)),
        ("ddp=2,tp=2", 4, ParallelPlan(ddp=2, tp=2, sharded=True)),
        ("ddp=2,fsdp2=1,tp=2", 4, ParallelPlan(ddp=2, tp=2, sharded=True)),
    ],
)
def test_a_plan_is_read_and_an_open_size_takes_the_ranks_left(text, world, expected):
    plan = ParallelPlan.parse(text, world)
    assert plan == expected
    assert plan.world_size == world
    assert ParallelPlan.parse(str(plan), world) == plan


@pytest.mark.parametrize(
    ("text", "world", "words"),
    [
        ("", 1, "'' is none of pp, ddp, fsdp2, tp"),
        ("fsdp", 2, "'fsdp' is none of"),
        ("tp=2,tp=2", 4, "names tp twice"),
        ("tp=0", 1, "size of tp is '0'"),
        ("tp=two", 2, "size of tp is 'two'"),
        ("tp=", 2, "size of tp is ''"),
        ("tp=-2", 2, "size of tp is '-2'"),
        ("fsdp2,ddp", 4, "only one of fsdp2, ddp can go without a size"),
        ("fsdp2=2", 4, "needs 2 ranks; there are 4"),
        ("fsdp2,tp=3", 4, "needs a multiple of 3 ranks; there are 4"),
    ],
)
def test_a_plan_that_cannot_work_is_refused_with_the_reason(text, world, words):
    with pytest.raises(ConfigError) as error:
        ParallelPlan.parse(text, world)
    assert words in str(error.value)
    assert repr(text) in str(error.value)


def test_ranks_of_one_model_copy_share_their_part_of_the_batch():
    plan = ParallelPlan.parse("pp=2,ddp=2,fsdp2=2,tp=2", 16)
    parts = [plan.data_rank(rank) for rank in range(16)]
    assert parts == [0, 0, 1, 1, 2, 2, 3, 3] * 2
    assert plan.data_ranks == 4


@pytest.mark.parametrize(("layers", "stages"), [(4, 1), (4, 4), (7, 3), (32, 5)])
def test_stages_hold_every_layer_once_and_in_order(layers, stages):
    ranges = [stage_layers(layers, stages, stage) for stage in range(stages)]
    assert [layer for stage in ranges for layer in stage] == list(range(layers))
    sizes = [len(stage) for stage in ranges]
    assert max(sizes) - min(sizes) <= 1
