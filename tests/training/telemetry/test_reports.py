"""The reports of a run: event files, metrics for Prometheus, traces, phases of a step."""

from __future__ import annotations

import errno
import gzip
import io
import json
import logging
import os
import socket
import urllib.request

import fsspec
import pytest
import torch
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata
from torch import nn

from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.arguments.profile_request import ProfileRequest, read_profile_request
from kfp_pytorch.training.errors import ConfigError, StorageError
from kfp_pytorch.training.faults.stopping import StopRequest
from kfp_pytorch.training.image import loop
from kfp_pytorch.training.image.models import small_cnn
from kfp_pytorch.training.lifecycle import Start
from kfp_pytorch.training.parallel.process_group import ALONE
from kfp_pytorch.training.storage.job_folder import LocalFolder, RemoteFolder, open_folder
from kfp_pytorch.training.telemetry import step_times, tensorboard_events
from kfp_pytorch.training.telemetry.confusion_matrix import confusion_matrix
from kfp_pytorch.training.telemetry.flops import image_flops
from kfp_pytorch.training.telemetry.profiling import Profiler
from kfp_pytorch.training.telemetry.prometheus import Exporter
from kfp_pytorch.training.telemetry.step_times import StepTimer
from kfp_pytorch.training.telemetry.tensorboard_events import TensorBoardWriter


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run of two epochs, with a trace of two of its steps."""
    torch.set_num_threads(1)
    output = tmp_path_factory.mktemp("job")
    arguments = {"epochs": 2, "log_every": 5, "max_train_samples": 500}
    config = Config(output=str(output), profile_steps="3:4", **arguments)
    loop.train(Start(config, ALONE, StopRequest()))
    return output


@pytest.fixture(scope="module")
def events(finished):
    events = EventAccumulator(str(finished / "tensorboard"), size_guidance={"images": 0})
    events.Reload()
    return events


def test_event_files_have_the_phases_of_a_step_memory_and_the_gradients_norm(events):
    tags = set(events.Tags()["scalars"])
    assert {
        *("step_seconds/data", "step_seconds/forward_backward", "step_seconds/optimizer"),
        *("gradient_norm", "host_memory_gb", "lr", "samples_per_second", "train_loss", "accuracy"),
    } <= tags
    assert all(event.value > 0 for event in events.Scalars("gradient_norm"))
    for event in events.Scalars("step_seconds/forward_backward"):
        assert event.value > 0
    assert all(0.05 < event.value < 64 for event in events.Scalars("host_memory_gb"))


def test_each_evaluation_draws_which_classes_were_taken_for_which(events):
    images = events.Images("confusion")
    assert [image.step for image in images] == [8, 16]
    picture = Image.open(io.BytesIO(images[-1].encoded_image_string))
    assert (picture.width, picture.height) == (images[-1].width, images[-1].height)
    assert picture.width >= 640


def test_arguments_and_the_names_of_results_are_there_for_the_hparams_tab(events):
    (start,) = (
        metadata.parse_session_start_info_plugin_data(content)
        for content in events.PluginTagToContent(metadata.PLUGIN_NAME).values()
        if b"loss" not in content and b"lr" in content
    )
    assert start.hparams["lr"].number_value == pytest.approx(0.05)
    assert start.hparams["model"].string_value == "small_cnn"
    assert start.hparams["download"].bool_value is False
    tags = events.PluginTagToContent(metadata.PLUGIN_NAME)
    experiment = metadata.parse_experiment_plugin_data(tags[metadata.EXPERIMENT_TAG])
    assert [info.name.tag for info in experiment.metric_infos] == ["accuracy", "loss"]
    assert metadata.SESSION_END_INFO_TAG in tags


def test_a_trace_has_the_steps_that_were_asked_for_and_no_others(finished):
    (path,) = (finished / "profile").iterdir()
    assert path.name == "rank0.steps3-4.pt.trace.json.gz"
    trace = json.loads(gzip.decompress(path.read_bytes()))
    names = [event.get("name", "") for event in trace["traceEvents"]]
    assert sum(name.startswith("Optimizer.step") for name in names) == 2


@pytest.mark.parametrize(
    ("steps", "ranks", "words"),
    [
        ("3", "0", "--profile-steps is '3'; write the first step"),
        ("0:3", "0", "from 1"),
        ("5:3", "0", "--profile-steps is '5:3'"),
        ("1:1000", "0", "1000 steps; a trace can have at most 100"),
        ("1:3", "0;1", "--profile-ranks is '0;1'; write ranks as in 0,3, or all"),
    ],
)
def test_a_trace_that_cannot_be_meant_is_refused(steps, ranks, words):
    with pytest.raises(ConfigError, match=words):
        Config(profile_steps=steps, profile_ranks=ranks)


def test_a_trace_that_could_not_be_made_is_a_warning(tmp_path, caplog):
    folder = LocalFolder(tmp_path)
    profiler = Profiler(read_profile_request("5:6", "0"), ALONE, folder)
    profiler.before(1)
    profiler.close()
    assert "steps 5 to 6 are not traced: training ended before step 6" in caplog.text
    Profiler(read_profile_request("5:6", "3,7"), ALONE, folder).close()
    assert "nothing is traced: --profile-ranks is 3, 7, and ranks go from 0 to 0" in caplog.text


def test_a_trace_is_made_on_the_ranks_that_were_named():
    assert read_profile_request("", "0") is None
    assert read_profile_request("2:3", "0,12") == ProfileRequest(2, 3, frozenset({0, 12}))
    assert read_profile_request("2:3", "all") == ProfileRequest(2, 3, None)


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_reads_the_last_report_and_where_the_job_is_now():
    place = [1, 7]
    exporter = Exporter(0, lambda: (place[0], place[1]), starts=2)
    exporter.report({"train_loss": 0.7, "samples_per_second": 900.0, "step_seconds/data": 0.01})
    exporter.report({"train_loss": 0.5, "loss": float("nan"), "of_no_interest": 1.0})
    place[1] = 9
    page = scrape(exporter.port)
    assert page["kfp_pytorch_train_loss",] == 0.5
    assert page["kfp_pytorch_samples_per_second",] == 900.0
    assert page["kfp_pytorch_step_seconds", "data"] == 0.01
    assert (page["kfp_pytorch_epoch",], page["kfp_pytorch_step",]) == (1, 9)
    assert page["kfp_pytorch_restarts",] == 2
    assert ("kfp_pytorch_loss",) not in page
    assert not any("interest" in name for name, *_ in page)


def test_the_age_of_the_checkpoint_starts_again_with_each_one():
    exporter = Exporter(0, lambda: (0, 0), starts=0)
    exporter._saved -= 1000
    assert scrape(exporter.port)["kfp_pytorch_checkpoint_age_seconds",] >= 1000
    exporter.checkpoint_saved()
    assert scrape(exporter.port)["kfp_pytorch_checkpoint_age_seconds",] < 1000


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="there is no IPv6")
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_metrics_are_served_over_ipv4_and_ipv6(address):
    exporter = Exporter(0, lambda: (0, 0), starts=0)
    with socket.create_connection((address, exporter.port), timeout=10) as connection:
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.0 200")


def test_training_continues_without_metrics_if_the_port_is_in_use(caplog):
    with socket.socket() as taken, caplog.at_level(logging.WARNING):
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        Exporter(port, lambda: (0, 0), starts=0).report({"train_loss": 1.0})
    assert f"port {port} cannot be listened on" in caplog.text
    assert "--metrics-port" in caplog.text


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_the_phases_of_steps_add_up_without_the_time_between_rows(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(step_times.time, "perf_counter", clock)
    timer = StepTimer(torch.device("cpu"))
    for _row in range(2):
        clock.now += 100
        timer.start()
        for _step in range(1000):
            for phase, seconds in (("data", 1), ("forward_backward", 4), ("optimizer", 2)):
                clock.now += seconds
                timer.mark(phase)
    assert timer.take() == {"data": 1, "forward_backward": 4, "optimizer": 2}
    assert timer.take() == {}


def test_what_is_left_of_backward_after_the_last_gradient_is_communication(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(step_times.time, "perf_counter", clock)
    model = nn.Linear(2, 1)
    timer = StepTimer(torch.device("cpu"))
    timer.watch_exchange(model)
    timer.start()
    clock.now = 3.0
    model(torch.ones(1, 2)).sum().backward()
    clock.now = 5.0
    timer.mark(step_times.COMPUTE)
    timer.mark(step_times.OPTIMIZER)
    assert timer.take() == {"forward_backward": 3, "communication": 2, "optimizer": 0}


def test_operations_are_those_of_the_layers_and_the_model_stays_as_it_was():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    forward = 2 * 8 * 3 * 9 * 16 * 16
    # Nobody asks for the gradient of the image.
    assert image_flops(model, (3, 16, 16)) == 2 * forward
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert image_flops(small_cnn(1, 10, 8), (1, 8, 8)) > 0


@pytest.mark.parametrize(("classes", "side"), [(1, 640), (10, 640), (41, 15 * 41), (1000, 1000)])
def test_a_confusion_matrix_can_be_drawn_of_any_number_of_classes(classes, side):
    counts = torch.eye(classes, dtype=torch.int64) * 3
    picture = confusion_matrix(counts, [f"class {number} " * 5 for number in range(classes)])
    assert picture.width == picture.height
    assert side <= picture.width < side + 200


def test_a_full_disk_is_an_error_of_the_next_report_with_its_path(tmp_path):
    writer = TensorBoardWriter(LocalFolder(tmp_path / "job"), done=0)
    # Where the thread that writes keeps what stopped it.
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    writer._writer._async_writer._worker.exception = full
    for report in (writer.flush, lambda: writer.scalars(1, {"loss": 1.0})):
        with pytest.raises(StorageError, match=r"cannot write .*events.*: No space .*--output"):
            report()


def test_a_place_where_no_event_file_can_be_is_named(tmp_path):
    (tmp_path / "tensorboard").write_bytes(b"no folder")
    with pytest.raises(StorageError, match=r"cannot write .*/tensorboard: "):
        TensorBoardWriter(LocalFolder(tmp_path), done=0)


def train_to_a_store(uri, look, monkeypatch, **arguments):
    """Trains with a report of each step; `look` sees the job before its fifth step."""
    step = loop.train_step

    def looking_step(job, *rest):
        if job.state.progress.step == 4:
            look(job)
        return step(job, *rest)

    monkeypatch.setattr(loop, "train_step", looking_step)
    monkeypatch.setattr(loop, "write_export", lambda *_: {})
    config = Config(output=uri, epochs=1, log_every=1, max_train_samples=500, **arguments)
    loop.train(Start(config, ALONE, StopRequest()))


def reported(uri, copy):
    """The steps of what lies in a store, as TensorBoard would read it there."""
    fsspec.filesystem("memory").get(f"{uri}/tensorboard/", f"{copy}/", recursive=True)
    events = EventAccumulator(str(copy))
    events.Reload()
    tags = events.Tags()["scalars"]
    return [event.step for event in events.Scalars("train_loss")] if tags else []


def test_an_object_store_has_all_reports_before_the_checkpoint_that_follows_them(
    tmp_path, monkeypatch
):
    uri, found = f"memory://{tmp_path.name}/job", []

    def look(job):
        job.checkpoints.wait()
        found.extend(reported(uri, tmp_path))

    train_to_a_store(uri, look, monkeypatch, checkpoint_every_steps=3)
    assert found[:3] == [1, 2, 3]


def test_an_object_store_has_the_reports_of_an_epoch_that_has_not_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(tensorboard_events, "_UPLOAD_SECONDS", 0.0)
    uri, found = f"memory://{tmp_path.name}/job", []
    train_to_a_store(uri, lambda _job: found.extend(reported(uri, tmp_path)), monkeypatch)
    assert found == [1, 2, 3, 4]


def test_reports_that_could_not_be_uploaded_are_uploaded_with_the_next_ones(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(tensorboard_events, "_UPLOAD_SECONDS", 0.0)
    uri, make = f"memory://{tmp_path.name}/job", RemoteFolder.make
    writer = TensorBoardWriter(open_folder(uri), done=0)

    def refuse(_folder, name):
        raise StorageError(f"cannot write {name}")

    monkeypatch.setattr(RemoteFolder, "make", refuse)
    writer.scalars(1, {"train_loss": 1.0})
    assert "the newest reports are not in TensorBoard yet: cannot write tensor" in caplog.text
    monkeypatch.setattr(RemoteFolder, "make", make)
    writer.scalars(2, {"train_loss": 1.0})
    assert reported(uri, tmp_path) == [1, 2]
    writer.close()
