"""The byte-level text data set: every window once an epoch, however many ranks there are."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

from kfp_pytorch.training.errors import CheckpointError, ConfigError, DataError
from kfp_pytorch.training.language.text import ByteText, TextBatches, files_in, standard_library

# 26 windows of 4 bytes, each of which tells its number.
TEXT = ByteText.of(b"".join(bytes([i] * 4) for i in range(26)) + b"\xff")


def take(batches: TextBatches, steps: int) -> list[list[int]]:
    """The numbers of the windows of each step."""
    return [batch[:, 0].tolist() for batch in itertools.islice(batches, steps)]


def test_a_batch_holds_each_byte_with_the_next_as_its_target():
    text = ByteText.of(b"hello")
    batch = next(TextBatches(text, seq_len=4, batch_size=2))
    assert batch.dtype == torch.int64
    assert batch.tolist() == [list(b"hello")] * 2


def test_every_window_occurs_once_per_epoch_and_each_epoch_has_its_own_order():
    seen = [window for step in take(TextBatches(TEXT, 4, 2), 39) for window in step]
    epochs = [seen[:26], seen[26:52], seen[52:]]
    assert all(sorted(epoch) == list(range(26)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_split_the_same_global_batches_though_they_do_not_divide_the_epoch(ranks):
    alone = take(TextBatches(TEXT, 4, 12), 5)
    each = [take(TextBatches(TEXT, 4, 12 // ranks, rank, ranks), 5) for rank in range(ranks)]
    together = [[w for rank in each for w in rank[step]] for step in range(5)]
    assert together == alone


def test_the_seed_alone_decides_the_order():
    assert take(TextBatches(TEXT, 4, 2, seed=1), 9) == take(TextBatches(TEXT, 4, 2, seed=1), 9)
    assert take(TextBatches(TEXT, 4, 2, seed=1), 9) != take(TextBatches(TEXT, 4, 2, seed=2), 9)


def test_a_run_resumes_at_its_step_with_another_number_of_ranks():
    whole = take(TextBatches(TEXT, 4, 4), 20)
    first = TextBatches(TEXT, 4, 4)
    take(first, 9)
    state = json.loads(json.dumps(first.state_dict()))
    rest = []
    for rank in range(2):
        batches = TextBatches(TEXT, 4, 2, rank, 2)
        batches.load_state_dict(state)
        assert batches.epoch == pytest.approx(36 / 26)
        rest.append(take(batches, 11))
    assert [a + b for a, b in zip(*rest, strict=True)] == whole[9:]


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (TextBatches(ByteText.of(b"other text"), 4, 1), "sha256"),
        (TextBatches(TEXT, 5, 1), "seq_len"),
        (TextBatches(TEXT, 4, 1, seed=7), "seed"),
    ],
)
def test_a_place_in_another_text_or_order_is_refused(other, name):
    with pytest.raises(CheckpointError, match=name):
        TextBatches(TEXT, 4, 1).load_state_dict(other.state_dict())


def test_the_default_text_exists_on_every_machine():
    text = ByteText.read(standard_library()[:20])
    assert len(text.data) > 100_000
    assert b"import" in text.data.numpy().tobytes()


def test_files_of_a_folder_are_in_the_order_of_their_paths(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "1.txt").write_bytes(b"second")
    (tmp_path / "a.txt").write_bytes(b"first")
    text = ByteText.read(files_in(tmp_path))
    assert text.data.numpy().tobytes() == b"first\0second"


def test_a_mounted_config_map_is_read_once_and_a_linked_folder_at_all(tmp_path):
    # As the kubelet mounts it: the file is a link into a hidden folder.
    (tmp_path / "map/..2026").mkdir(parents=True)
    (tmp_path / "map/..2026/a.txt").write_bytes(b"once")
    (tmp_path / "map/..data").symlink_to("..2026")
    (tmp_path / "map/a.txt").symlink_to("..data/a.txt")
    (tmp_path / "more").mkdir()
    (tmp_path / "more/b.txt").write_bytes(b"linked")
    (tmp_path / "map/more").symlink_to(tmp_path / "more")
    text = ByteText.read(files_in(tmp_path / "map"))
    assert text.data.numpy().tobytes() == b"once\0linked"


def test_a_link_in_a_folder_of_text_that_leads_nowhere_is_named(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"there")
    (tmp_path / "b.txt").symlink_to("gone.txt")
    with pytest.raises(DataError, match=r"cannot list .*/b.txt: No such file.*--text-files is the"):
        files_in(tmp_path)


def test_the_held_out_part_is_the_end_and_is_not_trained_on():
    train, held_out = TEXT.split(0.1)
    assert train.data.tolist() + held_out.data.tolist() == TEXT.data.tolist()
    assert len(held_out.data) == 10
    assert len({train.sha256, held_out.sha256, TEXT.sha256}) == 3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda tmp: files_in(tmp / "none"), "is no folder"),
        (files_in, "has no files"),
        (lambda tmp: ByteText.read([tmp / "none.txt"]), "none.txt cannot be read"),
        (lambda tmp: ByteText.of(b""), "is empty"),
        (lambda tmp: TextBatches(ByteText.of(b"abcd"), 4, 1), "has 4 bytes, fewer than the 5"),
        (lambda tmp: TextBatches(TEXT, 4, 0), "batch_size=0"),
        (lambda tmp: TextBatches(TEXT, 4, 1, 2, 2), "part 2 of a batch in 2 parts"),
    ],
)
def test_text_that_cannot_be_read_is_refused_with_the_reason(tmp_path, make, words):
    with pytest.raises(ConfigError, match=words):
        make(tmp_path)
