from __future__ import annotations

import json
import os
import random
import resource
import signal
import time

import fsspec
import pytest
import torch

from kfp_pytorch.training import checkpoint
from kfp_pytorch.training.errors import CheckpointError, StorageError
from kfp_pytorch.training.storage import open_folder

ABOUT = {"model": "small_cnn"}


def save(folder, step, model="small_cnn"):
    return checkpoint.save(folder, step, {"weight": torch.full((64,), step)}, {"model": model})


def newest_step(folder):
    found = checkpoint.newest(folder, ABOUT)
    assert found is not None
    assert found.state["weight"][0] == found.meta["step"]
    return found.meta["step"]


@pytest.fixture(params=["path", "object store"])
def folder(request, tmp_path):
    if request.param == "path":
        yield open_folder(str(tmp_path))
        return
    yield open_folder("memory://bucket/job")
    files = fsspec.filesystem("memory")
    if files.exists("/bucket"):
        files.rm("/bucket", recursive=True)


def test_the_newest_checkpoint_is_read_and_latest_names_it(folder):
    assert checkpoint.newest(folder, ABOUT) is None
    for step in (5, 10, 100):
        save(folder, step)
    assert newest_step(folder) == 100
    assert folder.read("checkpoints/latest") == b"step-00000100"


def test_old_checkpoints_and_cut_short_ones_are_deleted(folder):
    for step in (1, 2, 3):
        save(folder, step)
    folder.remove("checkpoints/step-00000002/meta.json")
    checkpoint.prune(folder, keep=1)
    assert folder.names("checkpoints") == ["latest", "step-00000003"]


def test_one_that_was_cut_short_is_as_good_as_none(folder):
    save(folder, 1)
    save(folder, 2)
    folder.remove("checkpoints/step-00000002/meta.json")
    assert newest_step(folder) == 1


@pytest.mark.parametrize("damage", [b"", b"random bytes", None])
def test_a_damaged_one_is_skipped_with_a_warning(tmp_path, caplog, damage):
    folder = open_folder(str(tmp_path))
    save(folder, 1)
    save(folder, 2)
    path = tmp_path / "checkpoints" / "step-00000002" / "state.pt"
    path.write_bytes(path.read_bytes()[:-100] if damage is None else damage)
    assert newest_step(folder) == 1
    assert "step-00000002 cannot be read" in caplog.text
    checkpoint.discard_after(folder, 1)
    checkpoint.prune(folder, keep=1)
    assert newest_step(folder) == 1


def test_when_none_can_be_read_nothing_starts_anew_by_itself(tmp_path):
    folder = open_folder(str(tmp_path))
    save(folder, 1)
    (tmp_path / "checkpoints" / "step-00000001" / "meta.json").write_text("{")
    with pytest.raises(CheckpointError, match="--resume never"):
        checkpoint.newest(folder, ABOUT)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "lightning"}, "its format is 'lightning'"),
        ({"version": 99}, "version 99"),
        ({"model": "resnet18"}, "made with model 'resnet18'"),
    ],
)
def test_a_foreign_one_is_refused_with_the_reason(tmp_path, change, words):
    folder = open_folder(str(tmp_path))
    save(folder, 1)
    path = tmp_path / "checkpoints" / "step-00000001" / "meta.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CheckpointError, match=words):
        checkpoint.newest(folder, ABOUT)


def test_a_folder_to_resume_from_has_to_have_a_checkpoint(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "epoch3.ckpt").touch()
    with pytest.raises(CheckpointError, match=r"epoch3\.ckpt"):
        checkpoint.newest_of_other(open_folder(str(tmp_path)), ABOUT)


def test_a_full_disk_fails_with_the_path_and_leaves_the_older_one(tmp_path):
    folder = open_folder(str(tmp_path))
    save(folder, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(StorageError, match=r"step-00000002/state\.pt: File too large"):
            save(folder, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert newest_step(folder) == 1
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_state_holds_no_code(tmp_path):
    folder = open_folder(str(tmp_path))
    checkpoint.save(folder, 1, {"weight": os.system}, ABOUT)
    with pytest.raises(CheckpointError, match="could run code"):
        checkpoint.newest(folder, ABOUT)


def test_kill_9_while_saving_always_leaves_one_that_loads(tmp_path):
    folder = open_folder(str(tmp_path))
    state = {"weight": torch.zeros(400_000)}
    chance = random.Random(0)
    last = 0
    for _ in range(30):
        saved, said = os.pipe()
        process = os.fork()
        if process == 0:
            step = last
            while True:
                step += 1
                checkpoint.save(folder, step, {**state, "step": step}, ABOUT)
                checkpoint.prune(folder, keep=2)
                os.write(said, b".")
        os.read(saved, 1)
        time.sleep(chance.uniform(0, 0.05))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(saved)
        os.close(said)
        found = checkpoint.newest(folder, ABOUT)
        assert found is not None
        assert found.state["step"] == found.meta["step"] > last
        last = found.meta["step"]
