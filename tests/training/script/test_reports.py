"""What a script reports, in a job and outside of one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from harness.s3 import BUCKET
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from kfp_pytorch.launcher import patterns

THREE_STEPS = """
for step in (1, 2, 3):
    script.report({"loss": 1 / step, "epoch": step}, step=step)
"""


def board(job):
    events = EventAccumulator(str(job.folder / "out" / "tensorboard"))
    return events.Reload()


def test_the_library_is_imported_without_torch_and_all_else_that_takes_long():
    code = (
        "import sys\nfrom kfp_pytorch.training import script\n"
        "heavy = {'torch', 'numpy', 'tensorboard', 'fsspec', 'mlflow', 'kfp', 'kubernetes',"
        " 'urllib3', 'yaml', 'PIL', 'lightning', 'transformers'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_a_report_is_a_line_a_curve_a_scalar_of_tensorboard_and_in_the_end_a_final_metric(run):
    job = run(THREE_STEPS, board=True)
    assert "step=2 loss=0.5 epoch=2\n" in job.output
    assert job.metrics()["curves"]["loss"] == [[1, 1.0], [2, 0.5], [3, 1 / 3]]
    assert job.metrics()["metrics"] == {"loss": 1 / 3, "epoch": 3}
    assert [(e.step, e.value) for e in board(job).Scalars("loss")][:2] == [(1, 1.0), (2, 0.5)]
    message = job.message()
    assert message["status"] == "succeeded"
    assert message["metrics"] == {"loss": 0.333333, "epoch": 3}
    assert message["world_size"] == 1
    assert message["curves"]["loss"][0] == [1, 1.0]
    assert "script.export" in message["no_export"]
    assert "checkpoint" not in message


def test_only_rank_0_reports_of_the_ranks_that_call(run):
    job = run(THREE_STEPS, RANK="1", WORLD_SIZE="2", LOCAL_RANK="1")
    assert job.output == ""
    assert (job.folder / "termination").read_text() == ""
    job = run(THREE_STEPS, RANK="0", WORLD_SIZE="2", LOCAL_RANK="0")
    assert job.message()["world_size"] == 2


def test_without_torchrun_a_node_has_one_process_whatever_the_operator_counts(run):
    job = run(THREE_STEPS, RANK="0", WORLD_SIZE="4", PET_NPROC_PER_NODE="2")
    assert job.message()["world_size"] == 2


def test_a_step_that_is_not_given_is_the_next_one(run):
    job = run('for _ in range(3):\n    script.report({"loss": 1.0})\n')
    assert [step for step, _ in job.metrics()["curves"]["loss"]] == [1, 2, 3]
    # A start that resumed from no checkpoint begins again.
    job = run('script.report({"loss": 2.0})\n')
    assert job.metrics()["curves"]["loss"] == [[1, 2.0]]


def test_a_metric_whose_last_value_is_no_number_is_no_final_metric(run):
    job = run(
        'script.report({"loss": 1.0, "accuracy": 0.5}, 1)\n'
        'script.report({"loss": float("nan")}, 2)\n'
        'script.finish({"auc": 0.9})\n'
    )
    assert "step=2 loss=nan" in job.output
    assert job.message()["metrics"] == {"auc": 0.9, "accuracy": 0.5}
    assert job.message()["not_finite"] == job.metrics()["not_finite"] == {"loss": "nan"}
    assert job.metrics()["curves"]["loss"] == [[1, 1.0]]


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ('{"loss": [1, 2]}', "the metric 'loss' is list and must be one number"),
        ('{"loss": "0.5"}', "the metric 'loss' is str"),
        ("[('loss', 1)]", "metrics is list and must be a dictionary"),
        ('{"loss": 1}, step=1.5', "step is 1.5 and must be a whole number"),
    ],
)
def test_what_is_no_number_is_refused_by_name(run, metrics, words):
    job = run(f"script.report({metrics})", code=1)
    assert words in job.output
    assert job.message()["error"]["type"] == "TypeError"


def test_numbers_of_numpy_and_arrays_of_one_are_numbers_and_steps(run):
    job = run(
        "import numpy as np\n"
        'values = {"loss": np.ones(1), "seen": np.int64(3), "rate": np.float32(0.5)}\n'
        "script.report(values, step=np.int64(2))\n"
    )
    assert "step=2 loss=1 seen=3 rate=0.5\n" in job.output


def test_a_start_that_begins_again_discards_the_curves_from_its_step_on(run):
    run(THREE_STEPS, board=True)
    job = run('script.report({"loss": 9.0}, step=3)', board=True)
    assert job.metrics()["curves"]["loss"] == [[1, 1.0], [2, 0.5], [3, 9.0]]
    assert [e.step for e in board(job).Scalars("loss")] == [1, 2, 3]
    assert board(job).Scalars("loss")[-1].value == 9.0


def test_a_step_before_the_last_one_continues_the_curve_there_and_says_so_once(run):
    job = run(
        'for step in (1, 2, 3, 2, 3, 3, 1, 2):\n    script.report({"loss": step}, step)\n'
        'script.report({"accuracy": 1}, 1)\n'
    )
    assert job.metrics()["curves"] == {"loss": [[1, 1], [2, 2]], "accuracy": [[1, 1]]}
    assert job.output.count("loss was reported after step 3, and now after 2") == 1
    assert job.output.count("discarded") == 1


def test_what_threads_report_at_once_or_after_the_script_has_ended_is_kept(run):
    job = run(
        """
        import threading

        def work(name):
            for step in range(100):
                script.report({name: step}, step)

        def work_on():
            threading.main_thread().join()
            work("late")

        for number in range(4):
            threading.Thread(target=work, args=(f"loss{number}",)).start()
        threading.Thread(target=work_on).start()
        """,
        board=True,
    )
    assert {len(points) for points in job.metrics()["curves"].values()} == {100}
    assert job.message()["metrics"] == dict.fromkeys(
        ["loss0", "loss1", "loss2", "loss3", "late"], 99
    )


def test_after_finish_a_script_may_report_more(run):
    job = run(
        'script.report({"loss": 1.0}, 5)\nscript.finish()\nscript.report({"test_loss": 2.0}, 5)\n',
        board=True,
    )
    assert job.message()["metrics"] == {"loss": 1.0, "test_loss": 2.0}
    assert [e.step for e in board(job).Scalars("loss")] == [5]


def test_outside_of_a_job_all_is_in_a_folder_of_the_current_one(run, tmp_path):
    nowhere = {"KFP_PYTORCH_OUTPUT": "", "KFP_PYTORCH_TERMINATION_LOG": ""}
    job = run(f"print(script.folder())\n{THREE_STEPS}", **nowhere)
    assert str(tmp_path / "kfp-pytorch-output") in job.output
    kept = json.loads((tmp_path / "kfp-pytorch-output" / "metrics.json").read_text())
    assert kept["metrics"]["loss"] == 1 / 3


def test_a_fork_of_a_script_leaves_no_result(run):
    job = run(
        "import os, sys\n"
        'script.report({"loss": 1.0}, 1)\n'
        "if not os.fork():\n    sys.exit()\n"
        "os.wait()\n"
        'assert not open(os.environ["KFP_PYTORCH_TERMINATION_LOG"]).read()\n'
    )
    assert job.message()["metrics"] == {"loss": 1.0}


STARTS_ITS_RANKS = """
import multiprocessing

def train():
    script.report({"loss": 0.5}, 1)
    script.report({"loss": 0.25}, 2)

if __name__ == "__main__":
    script.latest_checkpoint()
    rank = multiprocessing.get_context("spawn").Process(target=train)
    rank.start()
    rank.join()
"""


@pytest.mark.parametrize("own", [{}, {"accuracy": 0.9}])
def test_a_process_that_starts_the_ranks_leaves_what_they_have_reported(run, own):
    job = run(STARTS_ITS_RANKS + (f"    script.report({own}, 2)\n" if own else ""))
    assert job.message()["metrics"] == {"loss": 0.25, **own}
    assert job.metrics()["curves"]["loss"] == [[1, 0.5], [2, 0.25]]


def test_a_program_after_another_in_a_container_keeps_what_that_one_reported(run):
    run(THREE_STEPS + 'script.finish({"rows": 9})')
    job = run('script.report({"accuracy": 0.9}, 1)', in_container=True)
    assert job.message()["metrics"] == {"accuracy": 0.9, "rows": 9.0, "loss": 0.333333, "epoch": 3}
    assert {name: len(curve) for name, curve in job.metrics()["curves"].items()} == {
        **dict.fromkeys(("loss", "epoch"), 3),
        "accuracy": 1,
    }


@pytest.mark.slow
def test_a_report_of_a_loaders_worker_is_refused_for_nobody_would_have_it(run_torch):
    job = run_torch(
        """
        from torch.utils.data import DataLoader, Dataset

        class Samples(Dataset):
            def __len__(self):
                return 1

            def __getitem__(self, index):
                script.report({"index": index})

        next(iter(DataLoader(Samples(), num_workers=1, multiprocessing_context="fork")))
        """,
        code=1,
    )
    assert (
        "script.report was called in a worker of a DataLoader" in job.message()["error"]["message"]
    )


def test_a_job_in_an_object_store_leaves_its_result_without_being_asked_to(run, s3):
    uri = f"s3://{BUCKET}/script-reports"
    job = run(THREE_STEPS, board=True, KFP_PYTORCH_OUTPUT=uri, **s3.environment)
    assert job.message()["metrics"]["loss"] == 0.333333
    with s3.files.open(f"{BUCKET}/script-reports/metrics.json") as file:
        assert json.load(file)["step"] == 3
    assert s3.files.ls(f"{BUCKET}/script-reports/tensorboard")


def test_an_object_store_without_its_client_says_what_to_install(run):
    without = "import sys\nsys.modules['fsspec'] = None\n"
    job = run(without + "script.folder()", code=1, KFP_PYTORCH_OUTPUT="s3://bucket/key")
    assert "install s3fs or gcsfs" in job.message()["error"]["message"]


def test_without_tensorboard_one_word_says_what_to_install(run):
    job = run(THREE_STEPS, board=False)
    assert job.output.count("pip install tensorboard") == 1
    # Else it would be the reason of a failure that leaves no other.
    assert patterns.advice("program", job.output) == ""
    assert job.message()["metrics"]["loss"] == 0.333333


@pytest.mark.slow
def test_a_server_of_mlflow_gets_the_reports_where_it_is_named(run, tmp_path, monkeypatch):
    # A script ends without what a server takes too long for, and mlflow is imported for seconds.
    begun = """
import os, time
while not os.path.exists(script.folder() + "/mlflow.json"):
    time.sleep(0.01)
"""
    job = run(
        THREE_STEPS + begun,
        MLFLOW_TRACKING_URI=str(tmp_path / "mlflow"),
        MLFLOW_ALLOW_FILE_STORE="true",
    )
    run_id = json.loads((job.folder / "out" / "mlflow.json").read_text())["run_id"]
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = MlflowClient(tracking_uri=str(tmp_path / "mlflow"))
    assert [m.step for m in client.get_metric_history(run_id, "loss")] == [1, 2, 3]
    assert client.get_run(run_id).info.status == "FINISHED"


def test_a_data_set_is_where_the_job_was_told(run):
    uri = "s3://bucket/data"
    named = {"train": {"uri": uri, "metadata": {}}, "val": {"uri": "/val", "metadata": {}}}
    environ = {"KFP_PYTORCH_DATASET": uri, "KFP_PYTORCH_DATASETS": json.dumps(named)}
    job = run('print(script.dataset(), script.dataset("val"))', **environ)
    assert job.output == f"{uri} /val\n"
    job = run('script.dataset("test")', code=1, **environ)
    assert "no data set 'test', there is train, val" in job.message()["error"]["message"]
    job = run('script.dataset("val")', code=1, KFP_PYTORCH_DATASETS='{"val": "/val"}')
    assert "must be JSON such as" in job.message()["error"]["message"]
    job = run("script.dataset()", code=1)
    assert "set KFP_PYTORCH_DATASET to a path" in job.message()["error"]["message"]


def test_a_report_fails_no_training_whose_stdout_is_closed(run):
    job = run('sys.stdout.close()\nscript.report({"loss": 0.5}, step=1)')
    assert job.message()["metrics"] == {"loss": 0.5}
