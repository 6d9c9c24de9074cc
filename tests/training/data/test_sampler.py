from __future__ import annotations

import pytest
import torch

from kfp_pytorch.training.data.sampler import DistributedBatchSampler, evaluation_shards


def samplers(samples, ranks, batch, epoch=0, start=0, seed=0):
    made = [DistributedBatchSampler(samples, rank, ranks, batch, seed) for rank in range(ranks)]
    for sampler in made:
        sampler.set_epoch(epoch, start)
    return made


def seen(sampler):
    return [int(index) for batch in sampler for index in batch.indices[: batch.count]]


@pytest.mark.parametrize(
    ("samples", "ranks", "batch"),
    [(10, 3, 4), (9, 2, 4), (1438, 2, 64), (17, 4, 4), (3, 3, 8), (5, 4, 2), (100, 1, 33)],
)
def test_every_sample_occurs_once_per_epoch_in_equal_numbers_of_steps(samples, ranks, batch):
    made = samplers(samples, ranks, batch)
    assert len({len(sampler) for sampler in made}) == 1
    assert len({len(list(sampler)) for sampler in made}) == 1
    assert sorted(index for sampler in made for index in seen(sampler)) == list(range(samples))


@pytest.mark.parametrize(
    ("samples", "ranks", "batch"), [(16, 3, 4), (9, 2, 4), (1438, 2, 64), (19, 4, 4), (100, 1, 33)]
)
def test_a_small_rest_joins_the_batch_before_and_ranks_see_their_own_samples_alone(
    samples, ranks, batch
):
    parts = [part for sampler in samplers(samples, ranks, batch) for part in sampler]
    assert min(part.count for part in parts) >= min(batch, 8)
    assert all(len(part.indices) == part.count for part in parts)


def test_ranks_parts_of_a_global_batch_add_up_to_its_size():
    made = samplers(23, 3, 4)
    for parts in zip(*made, strict=True):
        assert sum(part.count for part in parts) == parts[0].global_size


def test_the_order_is_another_in_each_epoch_and_with_each_seed_and_the_same_again():
    orders = [seen(samplers(50, 1, 8, epoch=epoch)[0]) for epoch in (0, 1, 2)]
    assert orders[0] != orders[1] != orders[2]
    assert seen(samplers(50, 1, 8, epoch=1)[0]) == orders[1]
    assert seen(samplers(50, 1, 8, epoch=1, seed=7)[0]) != orders[1]


@pytest.mark.parametrize("ranks_after", [2, 1, 3, 8])
def test_an_epoch_resumes_at_its_step_with_other_ranks_too(ranks_after):
    before = samplers(61, 2, 4, epoch=3)
    done = [index for sampler in before for part in list(sampler)[:5] for index in part.indices]
    after = samplers(61, ranks_after, 4, epoch=3, start=len(done))
    rest = [index for sampler in after for index in seen(sampler)]
    assert sorted([*map(int, done), *rest]) == list(range(61))
    assert len({len(list(sampler)) for sampler in after}) == 1


def test_a_rank_that_has_no_part_in_the_rest_of_an_epoch_keeps_in_step_and_counts_nothing():
    made = samplers(9, 4, 6, start=8)
    parts = [next(iter(sampler)) for sampler in made]
    assert [part.count for part in parts] == [1, 0, 0, 0]
    # Enough for batch norm, each another.
    assert all(len(set(part.indices.tolist())) == 6 for part in parts)


def test_a_block_larger_than_the_data_set_takes_no_more_memory_than_one_of_its_size():
    sampler = DistributedBatchSampler(10, 0, 1, 4, seed=0, block=2**32 - 1)
    assert sampler.order().tolist() == list(range(10))


def test_an_epoch_that_is_done_has_no_steps_left():
    assert list(samplers(61, 2, 4, start=61)[0]) == []


@pytest.mark.parametrize(("samples", "ranks"), [(360, 2), (5, 3), (1, 4), (64, 1)])
def test_evaluation_counts_each_sample_once_in_equal_numbers_of_batches(samples, ranks):
    shards = [evaluation_shards(samples, rank, ranks, 16) for rank in range(ranks)]
    assert len({len(shard) for shard in shards}) == 1
    every = torch.cat([batch for shard in shards for batch in shard])
    assert sorted(every.tolist()) == list(range(samples))
