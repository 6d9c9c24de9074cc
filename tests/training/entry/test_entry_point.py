"""What the entry point makes of what ranks and agent left behind."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import tempfile
from dataclasses import asdict

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from kfp_pytorch.training import __main__ as entry_point
from kfp_pytorch.training.entry import agent
from kfp_pytorch.training.entry.rank_records import Failure, failure_record, first_failure


@pytest.fixture
def conclude(tmp_path, monkeypatch):
    termination = tmp_path / "termination"
    termination.touch()
    monkeypatch.setenv("KFP_PYTORCH_TERMINATION_LOG", str(termination))

    def run(terminated=False, agents_code=1):
        job = str(tmp_path / "job")
        code = entry_point._conclude(tmp_path, agents_code, terminated, job)
        return code, json.loads(termination.read_text()).get("error")

    return run


def leave_record(folder, failure, attempt=0):
    place = folder / "ranks" / "none_x" / f"attempt_{attempt}" / str(failure.rank)
    place.mkdir(parents=True)
    (place / "error.json").write_text(failure_record(failure))


@pytest.fixture
def agents_environ(tmp_path, monkeypatch):
    """The environment that the entry point gives to the agent, printed by another program."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nenv > '{tmp_path}/environ'\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}

    def run():
        entry_point._run_agent([], [], tmp_path)
        lines = (tmp_path / "environ").read_text().splitlines()
        return dict(line.partition("=")[::2] for line in lines)

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_pods_grace_period_limits_a_save_and_an_empty_variable_is_ignored(
    agents_environ, monkeypatch
):
    monkeypatch.setenv("PET_NNODES", "")
    environ = agents_environ()
    assert int(environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) > 300
    assert "PET_NNODES" not in environ
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in environ
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "20")
    assert agents_environ()["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "20"


def test_keys_and_tokens_of_secrets_are_used_without_a_line_break(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key\n")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "token\r\n")
    monkeypatch.setenv("OTHER", "first\nsecond\n")
    assert entry_point.main(["--epochs=-1"]) == 2
    environ = os.environ
    assert (environ["AWS_SECRET_ACCESS_KEY"], environ["MLFLOW_TRACKING_TOKEN"]) == ("key", "token")
    assert environ["OTHER"] == "first\nsecond\n"


def test_each_round_of_an_elastic_job_has_a_store_of_its_own(agents_environ, monkeypatch):
    monkeypatch.setenv("PET_NNODES", "1:2")
    assert agents_environ()["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"


def test_of_many_errors_the_first_by_time_is_reported(tmp_path, conclude):
    leave_record(tmp_path, Failure(0, 100.9, "PeerLostError", "rank 1 has gone"))
    leave_record(tmp_path, Failure(1, 100.2, "ValueError", "bad sample"))
    (tmp_path / "agent.json").write_text(json.dumps(asdict(Failure(0, 101, "ExitCode", "1"))))
    code, error = conclude()
    assert code == 1
    assert (error["rank"], error["type"], error["message"]) == (1, "ValueError", "bad sample")


EXPORTED = {"metrics": {"loss": 0.1}, "world_size": 1}


def exported(folder):
    """An export of two files, and the result that a rank leaves of it."""
    place = folder / "job" / "export"
    place.mkdir(parents=True)
    (place / "model.pt2").write_bytes(b"program")
    facts = {"sha256": hashlib.sha256(b"program").hexdigest(), "bytes": 7}
    content = json.dumps({"files": {"model.pt2": facts}})
    (place / "model.json").write_text(content)
    digest = hashlib.sha256(content.encode()).hexdigest()
    result = EXPORTED | {"export": {"path": "export", "sha256": digest, "model": {}}}
    (folder / "result.json").write_text(json.dumps(result))
    return place


def test_a_success_names_an_export_that_is_there(tmp_path, conclude):
    exported(tmp_path)
    assert conclude(agents_code=0) == (0, None)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda place: (place / "model.pt2").write_bytes(b"PROGRAM"), "model.pt2 is not what was"),
        (lambda place: (place / "model.pt2").unlink(), "has no model.pt2"),
        (lambda place: (place / "model.json").write_text("{}"), "model.json is not the one"),
        (lambda place: (place / "model.json").unlink(), "has no model.json"),
    ],
)
def test_a_training_whose_export_is_not_there_as_it_was_written_has_failed(
    tmp_path, conclude, capsys, damage, said
):
    damage(exported(tmp_path))
    code, error = conclude(agents_code=0)
    assert (code, error["type"]) == (1, "ExportError")
    assert said in error["message"]
    assert said in capsys.readouterr().err


def test_an_error_of_an_attempt_that_was_started_again_is_not_the_one_that_ended_it(tmp_path):
    leave_record(tmp_path, Failure(0, 100.0, "ValueError", "first attempt"), attempt=0)
    leave_record(tmp_path, Failure(1, 200.0, "ValueError", "last attempt"), attempt=1)
    failure = first_failure(tmp_path)
    assert failure is not None
    assert failure.message == "last attempt"


def test_a_record_that_was_cut_short_is_passed_over(tmp_path):
    leave_record(tmp_path, Failure(0, 100.0, "ValueError", "whole"))
    place = tmp_path / "ranks" / "none_x" / "attempt_0" / "1"
    place.mkdir(parents=True)
    (place / "error.json").write_text('{"mess')
    failure = first_failure(tmp_path)
    assert failure is not None
    assert failure.message == "whole"


def test_a_killed_rank_gives_128_and_the_signal(tmp_path, conclude):
    killed = Failure(1, 100.0, "SIGKILL", "out of memory", exit_code=-9)
    (tmp_path / "agent.json").write_text(json.dumps(asdict(killed)))
    leave_record(tmp_path, Failure(0, 101.2, "PeerLostError", "rank 1 has gone"))
    code, error = conclude()
    assert code == 137
    assert error["type"] == "SIGKILL"


@pytest.mark.parametrize("here", [True, False])
def test_a_stop_is_143_whichever_pod_was_asked(tmp_path, conclude, here):
    if not here:
        stopped = Failure(0, 100.0, "ExitCode", "143", exit_code=143)
        (tmp_path / "agent.json").write_text(json.dumps(asdict(stopped)))
    code, error = conclude(terminated=here)
    assert code == 143
    assert error["type"] == "Terminated"


def test_a_failure_names_the_newest_checkpoint(tmp_path, conclude):
    conclude()
    message = tmp_path / "termination"
    assert json.loads(message.read_text())["checkpoint"] is None
    checkpoint = tmp_path / "job" / "checkpoints" / "step-00000026"
    checkpoint.mkdir(parents=True)
    (checkpoint / "meta.json").write_text("{}")
    conclude()
    assert json.loads(message.read_text())["checkpoint"] == 26


def test_an_agent_that_left_nothing_is_a_failure_all_the_same(conclude):
    code, error = conclude()
    assert code == 1
    assert "log" in error["message"]


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [(signal.SIGKILL, "AgentError", "ended by SIGKILL"), (signal.SIGTERM, "Terminated", "to stop")],
)
def test_an_agent_that_was_killed_gives_128_and_the_signal(conclude, number, kind, words):
    code, error = conclude(agents_code=-number)
    assert code == 128 + number
    assert error["type"] == kind
    assert words in error["message"]


def test_of_ranks_that_ended_in_one_second_the_one_without_a_record_is_reported(tmp_path):
    record = tmp_path / "error.json"
    record.write_text(failure_record(Failure(0, 100.3, "PeerLostError", "rank 1 has gone")))
    missed = ProcessFailure(local_rank=0, pid=1, exitcode=138, error_file=str(record))
    left = ProcessFailure(local_rank=1, pid=2, exitcode=3, error_file=str(tmp_path / "none"))
    told = agent._first_of(ChildFailedError("ranks", {0: missed, 1: left}))
    assert (told.rank, told.exit_code) == (1, 3)
    assert told.time < left.timestamp


def test_a_pod_without_gpus_whose_processes_are_counted_by_gpu_says_what_to_set(monkeypatch):
    monkeypatch.setenv("PET_NPROC_PER_NODE", "gpu")
    told = agent._of_agent(ValueError("Cuda is not available."), ["--standalone"])
    assert "Cuda is not available. (PET_NPROC_PER_NODE is gpu: give this pod GPUs" in told.message


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--dataset=nope"], "'nope'"),
        (["--epochs=0"], "--epochs is 0"),
        (["--dataset=imagefolder"], "--data-dir"),
        (["--dataset=shards", "--data-dir=/not/here"], "'/not/here'"),
        (["--dataset=shards", "--data-dir=minio://bucket/key"], "write it as s3://BUCKET/KEY"),
        (["--resume-from=pvc://claim/job"], "give the path where it is mounted"),
        (["--dataset=fashion-mnist", "--data-dir=/not/here"], "/not/here/FashionMNIST/raw"),
    ],
)
def test_what_cannot_work_is_reported_before_torch_starts(tmp_path, monkeypatch, arguments, named):
    termination = tmp_path / "termination"
    termination.touch()
    monkeypatch.setenv("KFP_PYTORCH_TERMINATION_LOG", str(termination))
    monkeypatch.setattr(entry_point, "_run_agent", lambda *_: pytest.fail("the agent was started"))
    assert entry_point.main([*arguments, f"--output={tmp_path}"]) == 2
    assert named in json.loads(termination.read_text())["error"]["message"]


def test_a_pod_without_room_for_temporary_files_says_what_to_mount(tmp_path, monkeypatch):
    termination = tmp_path / "termination"
    termination.touch()
    monkeypatch.setenv("KFP_PYTORCH_TERMINATION_LOG", str(termination))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "read-only"))
    assert entry_point.main([f"--output={tmp_path}"]) == 2
    assert "emptyDir" in json.loads(termination.read_text())["error"]["message"]


def test_an_unknown_model_ends_a_rank_with_the_code_of_bad_arguments(start_ranks, tmp_path):
    ranks = start_ranks(1, "--model=resnet9999", f"--output={tmp_path / 'job'}")
    assert ranks.exit_codes() == [2]
    assert ranks.error(0)["exit_code"] == 2
    assert "'resnet9999'" in ranks.error(0)["message"]
