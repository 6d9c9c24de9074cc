"""Stories of one process, in this one."""

from __future__ import annotations

import itertools
import json
import math
import shutil
import threading

import pytest
import torch
from harness.in_process import StopAt, learned, newest_state
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer
from torch.distributed.checkpoint.staging import DefaultStager

from kfp_pytorch.training import lifecycle
from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.checkpoint import tensor_files
from kfp_pytorch.training.checkpoint.checkpoints import Checkpoints
from kfp_pytorch.training.checkpoint.job_state import State, position
from kfp_pytorch.training.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DivergedError,
    Stopped,
)
from kfp_pytorch.training.image import loop
from kfp_pytorch.training.learning_rate import learning_rate
from kfp_pytorch.training.lifecycle import Start
from kfp_pytorch.training.parallel.process_group import ALONE
from kfp_pytorch.training.storage.job_folder import open_folder
from kfp_pytorch.training.telemetry.curves import History
from kfp_pytorch.training.telemetry.metrics import Evaluation, LossMeter, Progress


def run(output, request=None, **arguments):
    torch.set_num_threads(1)
    config = Config(
        **{"output": str(output), "log_every": 5, "max_train_samples": 500, **arguments}
    )
    return loop.train(Start(config, ALONE, request or StopAt()))


@pytest.fixture(autouse=True)
def count_of_event_files(monkeypatch):
    """As in a new process: sorted by name, with 10 before 9."""
    counter = event_file_writer.AtomicCounter(0)
    monkeypatch.setattr(event_file_writer, "_global_uid", counter)


@pytest.fixture
def no_export(monkeypatch):
    """Leaves out what takes longest, where the story is another."""
    monkeypatch.setattr(loop, "write_export", lambda *_: {})


def test_a_run_stopped_anywhere_and_resumed_is_bit_for_bit_one_that_was_not(no_export, tmp_path):
    whole = run(tmp_path / "whole", epochs=3)
    for looks in (3, 9, 15):
        with pytest.raises(Stopped):
            run(tmp_path / "parts", StopAt(looks), epochs=3)
    parts = run(tmp_path / "parts", epochs=3)
    assert learned(parts["metrics"]) == learned(whole["metrics"])
    assert parts["curves"] == whole["curves"]
    expected, found = newest_state(tmp_path / "whole"), newest_state(tmp_path / "parts")
    for name, weight in expected["model"].items():
        assert torch.equal(found["model"][name], weight), name
    for name, value in expected["optimizer"].items():
        assert torch.equal(found["optimizer"][name], value), name
    assert torch.equal(expected["random"]["0"]["cpu"], found["random"]["0"]["cpu"])


def test_restarts_leave_no_gap_and_no_overlap_in_tensorboard(no_export, tmp_path):
    run(tmp_path, epochs=2)
    # Another process that died after a checkpoint, at a step that it had reported already.
    (newest,) = (tmp_path / "checkpoints").glob("step-*16")
    (newest / "meta.json").unlink()
    run(tmp_path, epochs=3)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    curves = json.loads((tmp_path / "metrics.json").read_text())["curves"]
    for name in ("train_loss", "accuracy"):
        steps = [event.step for event in events.Scalars(name)]
        assert steps == [step for step, _ in curves[name]]
        assert steps == sorted(set(steps))


def test_an_epoch_that_ends_with_a_checkpoint_of_steps_is_evaluated_once(no_export, tmp_path):
    arguments = {"checkpoint_every": 9, "checkpoint_every_steps": 8}
    run(tmp_path, epochs=2, **arguments)
    # As if it had been killed in the second epoch.
    shutil.rmtree(tmp_path / "checkpoints/step-00000016")
    run(tmp_path, epochs=3, **arguments)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("accuracy")] == [8, 16, 24]


def test_a_checkpoint_has_no_report_of_a_later_step_though_it_is_written_later(
    no_export, monkeypatch, tmp_path
):
    write, reported = tensor_files.write, threading.Event()

    def write_late(*arguments):
        reported.wait(300)
        return write(*arguments)

    def report(*arguments):
        told(*arguments)
        if arguments[0].state.progress.step > 1:
            reported.set()

    told = lifecycle.report_training
    monkeypatch.setattr(tensor_files, "write", write_late)
    monkeypatch.setattr(lifecycle, "report_training", report)
    with pytest.raises(Stopped):
        run(tmp_path, StopAt(2), log_every=1, checkpoint_every_steps=1, keep=9)
    first = json.loads((tmp_path / "checkpoints/step-00000001/meta.json").read_text())
    assert [step for step, _ in first["carried"]["history"]["train_loss"]] == [1]


@pytest.mark.parametrize("every", [1, 3])
def test_the_memory_for_checkpoints_is_made_once_and_before_if_there_is_time(
    no_export, monkeypatch, tmp_path, every
):
    stage, made_in = DefaultStager.stage, []

    def count(*arguments):
        made_in.append(threading.current_thread() is threading.main_thread())
        return stage(*arguments)

    monkeypatch.setattr(DefaultStager, "stage", count)
    run(tmp_path, epochs=1, checkpoint_every_steps=every)
    assert made_in == [every == 1]


def test_what_was_reported_before_an_error_can_be_read(no_export, monkeypatch, tmp_path):
    step = loop.train_step

    def failing_step(job, *arguments):
        if job.state.progress.step == 6:
            raise ValueError("a fault of the test's own")
        return step(job, *arguments)

    monkeypatch.setattr(loop, "train_step", failing_step)
    with pytest.raises(ValueError, match="a fault"):
        run(tmp_path, epochs=1)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train_loss")] == [5]


def test_a_job_that_starts_again_has_no_curves_of_the_one_before(no_export, tmp_path):
    run(tmp_path, epochs=2)
    # Such as one that died before its first checkpoint.
    shutil.rmtree(tmp_path / "checkpoints")
    run(tmp_path, epochs=1)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    curves = json.loads((tmp_path / "metrics.json").read_text())["curves"]
    steps = [event.step for event in events.Scalars("train_loss")]
    assert steps == [step for step, _value in curves["train_loss"]]
    assert [event.step for event in events.Scalars("accuracy")] == [8]
    assert [image.step for image in events.Images("train_images")] == [0]


def test_a_job_that_is_done_exports_again_without_training(tmp_path):
    first = run(tmp_path, epochs=1)
    again = run(tmp_path, epochs=1)
    assert again["metrics"] == first["metrics"]
    assert again["step"] == first["step"]


def test_a_checkpoint_that_is_evaluated_after_it_was_written_can_be_the_best(no_export, tmp_path):
    run(tmp_path, epochs=2, checkpoint_every_steps=8)
    losses = json.loads((tmp_path / "metrics.json").read_text())["curves"]["loss"]
    assert [step for step, _ in losses] == [8, 16]
    assert losses[1][1] < losses[0][1]
    assert (tmp_path / "checkpoints" / "best").read_text() == "step-00000016"


def test_weights_that_are_no_finite_numbers_are_saved_by_no_rank_that_is_left(tmp_path):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = State(model, optimizer, LossMeter(ALONE), Progress(step=3), History())
    config = Config(output=str(tmp_path))
    checkpoints = Checkpoints(open_folder(str(tmp_path)), config, ALONE, state, {})
    with torch.no_grad():
        model.weight[0, 0] = float("nan")
    with pytest.raises(DivergedError, match="the weights of step 3 are no finite"):
        checkpoints.save_alone(position(state))
    assert not list(tmp_path.iterdir())


def test_the_last_step_is_saved_after_training_has_waited_for_it(tmp_path, monkeypatch):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = State(model, optimizer, LossMeter(ALONE), Progress(step=3), History())
    config = Config(output=str(tmp_path))
    checkpoints = Checkpoints(open_folder(str(tmp_path)), config, ALONE, state, {})

    def miss_a_rank(*_):
        raise RuntimeError("Connection closed by peer")

    with monkeypatch.context() as patch:
        patch.setattr(tensor_files, "write", miss_a_rank)
        checkpoints.save()
        with pytest.raises(RuntimeError, match="Connection closed"):
            checkpoints.wait()
    checkpoints.save_alone(position(state))
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step-00000003"


def test_the_last_step_is_saved_though_the_copy_of_a_later_one_never_ends(
    tmp_path, monkeypatch, request
):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = State(model, optimizer, LossMeter(ALONE), Progress(step=3), History())
    config = Config(output=str(tmp_path))
    held = Checkpoints(open_folder(str(tmp_path)), config, ALONE, state, {})
    reached = position(state)
    # As when a GPU waits for a rank that has gone: what the host asks of it is never done.
    stands = threading.Event()
    request.addfinalizer(stands.set)
    monkeypatch.setattr(held._staging, "finish", stands.wait)
    monkeypatch.setattr("kfp_pytorch.training.checkpoint.checkpoints._LAST_WRITE_SECONDS", 0.1)
    state.progress.step = 4
    held.save()
    with pytest.raises(TimeoutError):
        held.save_alone(position(state))
    held.save_alone(reached)
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step-00000003"
    stands.set()
    held.wait()
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step-00000004"


def test_room_is_made_before_the_next_checkpoint_where_fewer_are_to_be_kept(no_export, tmp_path):
    run(tmp_path, epochs=4, keep=9)
    steps = sorted((tmp_path / "checkpoints").glob("step-*"))
    assert len(steps) == 4
    with pytest.raises(Stopped):
        run(tmp_path, StopAt(0), epochs=9, keep=1)
    best = (tmp_path / "checkpoints" / "best").read_text()
    left = {path.name for path in (tmp_path / "checkpoints").glob("step-*")}
    assert left == {best, steps[-1].name}


def test_what_was_cut_short_is_out_of_the_way_of_the_next_start(no_export, tmp_path):
    cut = tmp_path / "job" / "checkpoints" / "step-00000008"
    cut.mkdir(parents=True)
    (cut / "__0_0.distcp").write_bytes(b"all that there was room for")
    config = Config(output=str(tmp_path / "job"))
    with loop.set_up(Start(config, ALONE, StopAt())).telemetry:
        assert not cut.exists()


def test_batch_norm_trains_on_the_last_batch_that_one_sample_is_left_for(no_export, tmp_path):
    # Its last images have one pixel, and of one value batch norm has no variance.
    result = run(tmp_path, model="resnet18", epochs=1, batch_size=4, max_train_samples=9)
    assert result["step"] == 2


@pytest.mark.parametrize(("batch", "samples"), [(1, 9), (64, 1)])
def test_one_image_at_a_time_that_batch_norm_cannot_train_on_is_refused_before_a_step(
    tmp_path, batch, samples
):
    words = (
        f"--batch-size is {batch}, of {samples} samples to train on, and --model resnet18 .* size "
        r"8x8 one pixel is left at layer layer2\.0\.bn1, .* as with --batch-size 2"
    )
    with pytest.raises(ConfigError, match=words):
        run(tmp_path, model="resnet18", batch_size=batch, max_train_samples=samples)
    assert not list(tmp_path.rglob("step-*"))


def test_a_model_whose_images_stay_large_enough_trains_on_one_at_a_time(no_export, tmp_path):
    assert run(tmp_path, epochs=1, batch_size=1, max_train_samples=9)["step"] == 9


def test_an_image_model_whose_plan_has_other_ranks_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="'ddp=2' needs 2 ranks; there are 1"):
        run(tmp_path, parallelism="ddp=2")


def test_another_jobs_folder_is_started_from_and_left_as_it_was(no_export, tmp_path):
    run(tmp_path / "first", epochs=1)
    before = {p: p.read_bytes() for p in (tmp_path / "first").rglob("*") if p.is_file()}
    second = run(tmp_path / "second", epochs=2, resume_from=str(tmp_path / "first"))
    assert second["step"] == 16
    assert {p: p.read_bytes() for p in (tmp_path / "first").rglob("*") if p.is_file()} == before


def test_a_checkpoint_of_another_model_is_refused_without_resume_never(no_export, tmp_path):
    run(tmp_path, epochs=1)
    with pytest.raises(CheckpointError, match=r"seed 0, and this run has 1.*--resume never"):
        run(tmp_path, epochs=1, seed=1)
    assert run(tmp_path, epochs=1, seed=1, resume="never")["step"] == 8


def test_a_checkpoint_of_another_kind_of_optimizer_is_refused_with_the_way_out(no_export, tmp_path):
    run(tmp_path, epochs=1)
    with pytest.raises(CheckpointError, match=r"unknown.*momentum_buffer.*such as --momentum, use"):
        run(tmp_path, epochs=2, momentum=0.0)


def test_ranks_that_are_started_again_resume_despite_resume_never(no_export, monkeypatch, tmp_path):
    run(tmp_path / "job", epochs=1)
    (tmp_path / "container").mkdir()
    monkeypatch.setenv("KFP_PYTORCH_OUTCOME_DIR", str(tmp_path / "container"))
    with pytest.raises(Stopped):
        run(tmp_path / "job", StopAt(3), epochs=1, resume="never")
    (name,) = [path.name for path in (tmp_path / "job/checkpoints").glob("step-*")]
    assert name == "step-00000003"
    assert run(tmp_path / "job", epochs=1, resume="never")["step"] == 8
    curves = json.loads((tmp_path / "job/metrics.json").read_text())["curves"]
    assert [step for step, _ in curves["train_loss"]] == [5, 8]


@pytest.mark.parametrize(
    "carried",
    [
        None,
        {},
        {"progress": {"epoch": "x"}},
        {"progress": {"epoch": 0, "samples": 0, "step": 7}},
        {"meter": [1.0]},
    ],
)
def test_a_description_that_was_edited_is_refused_with_its_path(no_export, tmp_path, carried):
    run(tmp_path, epochs=1)
    (path,) = tmp_path.glob("checkpoints/*/meta.json")
    meta = json.loads(path.read_text())
    kept = {**meta["carried"], **carried} if carried else carried
    path.write_text(json.dumps({**meta, "carried": kept}))
    with pytest.raises(CheckpointError, match=r"step-\d+ does not say where it was .*delete it"):
        run(tmp_path, epochs=2)


def test_a_checkpoint_says_which_batch_and_rate_it_was_made_with(no_export, tmp_path):
    run(tmp_path, epochs=1, batch_size=50, lr=0.01)
    (meta,) = (tmp_path / "checkpoints").glob("*/meta.json")
    about = json.loads(meta.read_text())
    assert (about["world_size"], about["global_batch"], about["learning_rate"]) == (1, 50, 0.01)
    assert about["arguments"]["batch_size"] == 50


def test_everything_goes_to_an_object_store(tmp_path):
    import fsspec

    uri = f"memory://{tmp_path.name}/job"
    run(uri, epochs=1)
    files = {path.partition("/job/")[2] for path in fsspec.filesystem("memory").find(uri)}
    assert {"export/model.json", "metrics.json", "checkpoints/latest"} <= files
    assert any(name.startswith("tensorboard/events.out.tfevents") for name in files)
    assert run(uri, epochs=1)["step"] == 8


def test_the_rate_is_scaled_with_the_ranks_after_a_warm_up_from_that_of_one():
    config = Config(lr=0.1, epochs=11, warmup_epochs=1)
    assert learning_rate(config, 4, 0) == pytest.approx(0.1)
    assert learning_rate(config, 4, 0.5) == pytest.approx(0.25)
    assert learning_rate(config, 4, 1) == pytest.approx(0.4)
    assert learning_rate(config, 4, 6) == pytest.approx(0.2)
    assert learning_rate(config, 4, 11) == pytest.approx(0, abs=1e-9)
    unscaled = Config(lr=0.1, epochs=11, lr_scaling="none")
    assert math.isclose(learning_rate(unscaled, 4, 1), 0.1)


def test_a_curve_of_a_long_job_drops_every_other_point_but_neither_end():
    history = History()
    for step in range(25_000):
        history.add(step, {"train_loss": 1 / (step + 1)})
    points = history.curves["train_loss"]
    assert 5_000 <= len(points) <= 10_000
    assert (points[0][0], points[-1][0]) == (0, 24_999)
    assert max(after - before for (before, _), (after, _) in itertools.pairwise(points)) <= 8


def test_an_evaluation_of_no_sample_at_all_is_an_error_of_the_data():
    with pytest.raises(DataError, match="no held-out image can be decoded"):
        Evaluation(ALONE, 2).result()
