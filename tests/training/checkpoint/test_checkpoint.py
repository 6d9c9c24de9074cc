from __future__ import annotations

import io
import json
import multiprocessing
import os
import pickle
import random
import resource
import runpy
import time
from pathlib import Path

import aiohttp
import fsspec
import google.auth.exceptions
import pytest
import torch
from fsspec.implementations.memory import MemoryFile
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from kfp_pytorch.training.checkpoint import catalog, tensor_files
from kfp_pytorch.training.checkpoint.index import read_index
from kfp_pytorch.training.errors import CheckpointError, StorageError, StoreUnavailableError
from kfp_pytorch.training.storage.job_folder import open_folder

SAVING_PROCESS = Path(__file__).parents[1] / "programs" / "saving_process.py"
FORKS = multiprocessing.get_context("forkserver")
ABOUT = {"model": "small_cnn"}


def save(folder, step, size=64):
    def commit(files):
        catalog.complete(folder, step, ABOUT, files)

    tensors = {"model": {"weight": torch.full((size,), step)}}
    tensor_files.write(folder, catalog.path_of(step), tensors, None, commit)


def newest_step(folder, size=64):
    found = catalog.newest(folder, ABOUT)
    assert found is not None
    weight = torch.zeros(size, dtype=torch.int64)
    index = read_index(folder, found.path, found.meta["files"])
    tensor_files.read(folder, found.path, index, {"model": {"weight": weight}}, None)
    assert set(weight.tolist()) == {found.step}
    return found.step


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
    assert catalog.newest(folder, ABOUT) is None
    for step in (5, 10, 100):
        save(folder, step)
    assert newest_step(folder) == 100
    assert folder.read("checkpoints/latest") == b"step-00000100"


def test_old_and_incomplete_checkpoints_are_deleted(folder):
    for step in (1, 2, 3):
        save(folder, step)
    folder.remove("checkpoints/step-00000002/meta.json")
    catalog.prune(folder, keep=1)
    assert folder.names("checkpoints") == ["latest", "step-00000003"]


def test_one_that_is_being_written_after_the_newest_is_not_deleted(folder):
    for step in (1, 2, 3):
        save(folder, step)
    folder.remove("checkpoints/step-00000003/meta.json")
    catalog.prune(folder, keep=1)
    assert folder.names("checkpoints/step-00000003") == [".metadata", "__0_0.distcp"]


def test_where_none_is_complete_incomplete_ones_are_deleted(folder):
    save(folder, 1)
    folder.remove("checkpoints/step-00000001/meta.json")
    catalog.prune(folder, keep=1)
    assert folder.names("checkpoints") == ["latest"]


def test_a_folder_of_checkpoints_that_is_a_link_is_emptied_and_stays_one(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "job").mkdir()
    (tmp_path / "job/checkpoints").symlink_to(tmp_path / "disk")
    folder = open_folder(str(tmp_path / "job"))
    save(folder, 1)
    catalog.clear(folder)
    assert not list((tmp_path / "disk").iterdir())
    save(folder, 2)
    assert (tmp_path / "disk/step-00000002/meta.json").is_file()


def test_a_write_that_loses_a_rank_keeps_what_another_saved_meanwhile(folder):
    class Lost(tensor_files.Planner):
        def create_local_plan(self):
            raise RuntimeError("Connection closed by peer")

    save(folder, 1)
    with pytest.raises(CheckpointError, match="Connection closed by peer"):
        tensor_files.write(folder, catalog.path_of(1), {}, None, dict.update, Lost())
    assert newest_step(folder) == 1


def test_an_incomplete_one_is_ignored(folder):
    save(folder, 1)
    save(folder, 2)
    folder.remove("checkpoints/step-00000002/meta.json")
    assert newest_step(folder) == 1


@pytest.mark.parametrize("damage", [b"", b"random bytes", "cut short", "of the same size", "gone"])
def test_a_damaged_one_is_skipped_with_a_warning(tmp_path, caplog, damage):
    folder = open_folder(str(tmp_path))
    save(folder, 1)
    save(folder, 2)
    path = tmp_path / "checkpoints" / "step-00000002" / "__0_0.distcp"
    whole = path.read_bytes()
    changed = {"cut short": whole[:-100], "of the same size": whole[:-1] + b"?"}
    path.write_bytes(changed.get(damage, damage if isinstance(damage, bytes) else b""))
    if damage == "gone":
        path.unlink()
    assert newest_step(folder) == 1
    assert "step-00000002 cannot be read" in caplog.text
    catalog.discard_after(folder, 1)
    catalog.prune(folder, keep=1)
    assert newest_step(folder) == 1


@pytest.mark.parametrize("damage", ["", '{"step": 2', '{"loss": NaN}', "[]", "[" * 10_000])
def test_one_whose_description_is_damaged_is_skipped_with_a_warning(tmp_path, caplog, damage):
    folder = open_folder(str(tmp_path))
    save(folder, 1)
    save(folder, 2)
    (tmp_path / "checkpoints" / "step-00000002" / "meta.json").write_text(damage)
    assert newest_step(folder) == 1
    assert "step-00000002 cannot be read" in caplog.text


@pytest.mark.parametrize(
    "answer",
    [
        TimeoutError("no answer"),
        aiohttp.ServerDisconnectedError("no answer"),
        google.auth.exceptions.RefreshError("no answer"),
        # What gcsfs makes of an answer with 400.
        ValueError("Bad Request: b/bucket\nno answer"),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_no_checkpoint_is_deleted_when_an_object_store_does_not_answer(monkeypatch, answer):
    folder = open_folder(f"memory://silent/{type(answer).__name__}")
    for step in (1, 2):
        save(folder, step)
    read = folder._store.cat_file

    def fail_once(_path):
        monkeypatch.setattr(folder._store, "cat_file", read)
        raise answer

    monkeypatch.setattr(folder._store, "cat_file", fail_once)
    with pytest.raises(StorageError, match=r"(?s)cannot read .*002/meta.json: .*no answer"):
        catalog.newest(folder, ABOUT)
    assert newest_step(folder) == 2


def test_a_store_that_fails_while_tensors_are_written_is_asked_once(monkeypatch):
    asked = []

    def refuse(file, _data):
        asked.append(file)
        # As fsspec's files of object stores do when an upload cannot be begun.
        io.BytesIO.close(file)
        raise aiohttp.ServerDisconnectedError("no answer")

    monkeypatch.setattr(MemoryFile, "write", refuse)
    with pytest.raises(StoreUnavailableError, match="no answer"):
        save(open_folder("memory://gone/job"), 1)
    assert len(asked) == 1


def test_when_none_can_be_read_training_does_not_start_from_the_beginning(tmp_path):
    folder = open_folder(str(tmp_path))
    save(folder, 1)
    (tmp_path / "checkpoints" / "step-00000001" / "meta.json").write_text("{")
    with pytest.raises(CheckpointError, match="--resume never"):
        catalog.newest(folder, ABOUT)


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
        catalog.newest(folder, ABOUT)


def test_a_checkpoint_of_an_older_release_with_fewer_keys_is_resumed_from(tmp_path):
    folder = open_folder(str(tmp_path))
    save(folder, 1)
    assert catalog.newest(folder, {**ABOUT, "class_names": "a, b"}).step == 1


@pytest.mark.parametrize("step", [1, 3])
def test_files_of_another_program_are_refused_and_not_deleted(tmp_path, step):
    folder = open_folder(str(tmp_path))
    save(folder, 2)
    theirs = tmp_path / "checkpoints" / f"step-{step}" / "model.safetensors"
    theirs.parent.mkdir()
    theirs.touch()
    with pytest.raises(CheckpointError, match=rf"step-{step} is no .* is model\.safetensors; move"):
        catalog.newest(folder, ABOUT)
    assert theirs.is_file()


def test_a_file_in_the_place_of_a_checkpoint_is_refused_with_the_way_out(tmp_path):
    folder = open_folder(str(tmp_path))
    save(folder, 1)
    theirs = tmp_path / "checkpoints" / "step-00000002"
    theirs.touch()
    with pytest.raises(CheckpointError, match=r"step-00000002 is a file, .* move it away"):
        catalog.newest(folder, ABOUT)
    theirs.unlink()
    assert newest_step(folder) == 1


def test_a_checkpoint_under_a_name_of_another_form_is_refused_or_passed_over(tmp_path):
    folder = open_folder(str(tmp_path))
    for step in (1, 2):
        save(folder, step)
    for name in ("step-²", "step-00000002.bak", "step-"):
        (tmp_path / "checkpoints" / name).mkdir()
    assert newest_step(folder) == 2
    (tmp_path / "checkpoints" / "step-00000002").rename(tmp_path / "checkpoints" / "step-2")
    with pytest.raises(CheckpointError, match=r"step-2 is no name .* rename it to step-00000002"):
        catalog.newest(folder, ABOUT)


def test_a_folder_to_resume_from_has_to_have_a_checkpoint(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "epoch3.ckpt").touch()
    with pytest.raises(CheckpointError, match=r"epoch3\.ckpt"):
        catalog.newest_of_other(open_folder(str(tmp_path)), ABOUT)


@pytest.mark.parametrize(("size", "limit"), [(64, 1000), (200_000, 1000), (200_000, 100_000)])
def test_a_full_disk_fails_with_the_path_and_leaves_the_older_one(tmp_path, size, limit):
    folder = open_folder(str(tmp_path))
    save(folder, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(StorageError, match=r"cannot write .*step-00000002: File too large"):
            save(folder, 2, size)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert newest_step(folder) == 1
    assert not list(tmp_path.rglob("*.tmp"))


def test_the_best_is_kept_beside_the_newest_and_named(folder):
    losses = {1: 0.5, 2: 0.3, 3: 0.4, 4: 0.6, 9: 0.1}
    for step in (1, 2, 3, 4):
        save(folder, step)
        catalog.prune(folder, keep=1, losses=losses)
    assert folder.names("checkpoints") == ["best", "latest", "step-00000002", "step-00000004"]
    assert folder.read("checkpoints/best") == b"step-00000002"


class Malicious:
    def __reduce__(self):
        return os.system, ("touch /tmp/kfp-pytorch-was-here",)


def test_an_index_that_would_run_code_is_refused(tmp_path):
    folder = open_folder(str(tmp_path))
    save(folder, 1)
    found = catalog.newest(folder, ABOUT)
    index = tmp_path / "checkpoints" / "step-00000001" / ".metadata"
    index.write_bytes(pickle.dumps(Malicious()))
    with pytest.raises(CheckpointError, match=r"names posix\.system.*could run code"):
        read_index(folder, found.path, found.meta["files"])


def test_an_index_that_points_outside_of_its_checkpoint_is_refused(tmp_path):
    folder = open_folder(str(tmp_path))
    save(folder, 1)
    found = catalog.newest(folder, ABOUT)
    with pytest.raises(CheckpointError, match=r"points to '__0_0\.distcp', which is no file of"):
        read_index(folder, found.path, {"other": {}})


@pytest.mark.parametrize("content", [b"", b"random bytes", pickle.dumps({"a": 1})])
def test_a_file_that_is_no_index_is_refused(tmp_path, content):
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(CheckpointError, match="is no index of tensors"):
        read_index(open_folder(str(tmp_path)), ".", {})


def test_an_object_in_the_place_of_a_tensor_is_refused_unread(tmp_path):
    folder = open_folder(str(tmp_path))
    written = {}
    hidden = {"model": {"weight": Malicious()}}
    tensor_files.write(folder, "somewhere", hidden, None, written.update)
    index = read_index(folder, "somewhere", written)
    with pytest.raises(CheckpointError, match=r"'model\.weight'; reading it could run code"):
        tensor_files.read(folder, "somewhere", index, {"model": {"weight": torch.zeros(2)}}, None)


def test_tensors_are_those_that_other_programs_of_torch_read(tmp_path):
    save(open_folder(str(tmp_path)), 7)
    dcp_to_torch_save(tmp_path / "checkpoints" / "step-00000007", tmp_path / "plain.pt")
    assert torch.load(tmp_path / "plain.pt", weights_only=True)["model"]["weight"][0] == 7


def test_a_plan_is_kept_while_tensors_do_not_change(tmp_path):
    folder, planner = open_folder(str(tmp_path)), tensor_files.Planner()
    first = {"a": torch.full((3,), 1.0)}
    again = {"a": torch.full((3,), 2.0)}
    more = {"a": torch.full((3,), 3.0), "b": torch.full((2,), 4.0)}
    plans = []
    for number, tensors in enumerate((first, again, more, more)):
        place, written = f"save-{number}", {}
        tensor_files.write(folder, place, {"model": tensors}, None, written.update, planner)
        plans.append(planner.plan)
        index = read_index(folder, place, written)
        read = {name: torch.zeros_like(value) for name, value in tensors.items()}
        tensor_files.read(folder, place, index, {"model": read}, None)
        assert {name: value.tolist() for name, value in read.items()} == {
            name: value.tolist() for name, value in tensors.items()
        }
        assert index.state_dict_metadata.keys() == {f"model.{name}" for name in tensors}
    assert plans[0] is plans[1]
    assert plans[1] is not plans[2]
    assert plans[2] is plans[3]


def test_all_bytes_of_a_file_are_there_when_it_is_synced(tmp_path, monkeypatch):
    synced, sync, written = {}, os.fsync, {}

    def record(descriptor):
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced[path.name.removesuffix(".tmp")] = path.stat().st_size
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    tensors = {"few": torch.zeros(3), "many": torch.zeros(3_000_000)}
    tensor_files.write(open_folder(str(tmp_path)), "somewhere", tensors, None, written.update)
    assert synced == {name: facts["bytes"] for name, facts in written.items()}
    assert synced.keys() == {"__0_0.distcp", ".metadata"}


@pytest.mark.parametrize("kills", [2, pytest.param(200, marks=pytest.mark.slow)])
def test_kill_9_while_saving_always_leaves_one_that_loads(tmp_path, kills):
    folder = open_folder(str(tmp_path))
    chance = random.Random(0)
    last = 0
    for _ in range(kills):
        names = {"folder": str(tmp_path), "size": 100_000, "first": last + 1}
        process = FORKS.Process(target=runpy.run_path, args=(str(SAVING_PROCESS), names))
        process.start()
        while not (tmp_path / f"saved-{last + 1}").exists():
            assert process.is_alive()
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.05))
        process.kill()
        process.join()
        step = newest_step(folder, 100_000)
        assert step > last
        last = step
