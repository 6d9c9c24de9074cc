"""A script's checkpoints: complete or absent, and where a job resumes."""

from __future__ import annotations

import json

import pytest

TRAINS = """
import os, signal, sys
from kfp_pytorch.training.checkpoint import catalog

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.Adam(model.parameters())
step, found = 0, script.latest_checkpoint()
if found:
    state = found.load({"model": model, "optimizer": optimizer})
    step = state["step"]
    assert optimizer.state_dict()["state"][0]["step"] == step
print("begins at", step)
for step in range(step + 1, 7):
    loss = model(torch.ones(4, 2)).square().mean()
    loss.backward()
    optimizer.step()
    script.report({"loss": loss.detach()}, step)
    if step == int(os.environ.get("KILL_IN", 0)):
        catalog.complete = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    if step % 2 == 0:
        state = {"model": model, "optimizer": optimizer, "step": step}
        script.save_checkpoint(state, step)
    if step == int(os.environ.get("KILL_AFTER", 0)):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("killed", [{"KILL_AFTER": "5"}, {"KILL_IN": "6"}])
def test_a_job_that_is_killed_resumes_from_its_newest_complete_checkpoint(run_torch, killed):
    run_torch(TRAINS, code=-9, **killed)
    job = run_torch(TRAINS)
    assert "begins at 4" in job.output
    assert "resuming from" in job.output
    assert [step for step, _ in job.metrics()["curves"]["loss"]] == [1, 2, 3, 4, 5, 6]
    assert job.message()["checkpoint"] == 6
    kept = {path.name for path in (job.folder / "out" / "checkpoints").iterdir()}
    assert kept == {"latest", "step-00000004", "step-00000006"}
    meta = json.loads((job.folder / "out/checkpoints/step-00000006/meta.json").read_text())
    assert set(meta["files"]) == {"state.pt"}


def test_a_damaged_checkpoint_is_passed_over_and_the_curves_are_those_up_to_the_older(run_torch):
    job = run_torch(TRAINS, code=-9, KILL_AFTER="5")
    path = job.folder / "out/checkpoints/step-00000004/state.pt"
    path.write_bytes(b"\0" + path.read_bytes()[1:])
    job = run_torch(TRAINS)
    assert "begins at 2" in job.output
    assert [step for step, _ in job.metrics()["curves"]["loss"]] == [1, 2, 3, 4, 5, 6]


def test_another_jobs_folder_is_where_a_job_without_a_checkpoint_resumes(run_torch):
    job = run_torch(TRAINS)
    (job.folder / "out").rename(job.folder / "other")
    job = run_torch(TRAINS, KFP_PYTORCH_RESUME_FROM=str(job.folder / "other"))
    assert "begins at 6" in job.output
    assert len(job.metrics()["curves"]["loss"]) == 6
    assert set(job.message()["metrics"]) == {"loss"}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ('{"best": __import__("numpy").float64(1)}', "float(x) of a number of NumPy"),
        ('{"args": __import__("argparse").Namespace(lr=1)}', "the state has argparse.Namespace"),
        ('{"schedule": lambda step: 1.0}', "the state has an object"),
        ("{}, -1", "step is -1"),
    ],
)
def test_what_could_not_be_loaded_again_is_refused_when_it_is_saved(run_torch, state, words):
    given = state if "-1" in state else f"{state}, 1"
    job = run_torch(f"script.save_checkpoint({given})", code=1)
    assert words in job.message()["error"]["message"]
    assert not (job.folder / "out" / "checkpoints").exists()


def test_the_checkpoint_that_was_saved_last_is_the_newest_whatever_its_step(run_torch):
    job = run_torch(
        """
        for step in (5, 10, 7):
            script.save_checkpoint({"step": step}, step)
        assert script.latest_checkpoint().load() == {"step": 7}
        """
    )
    kept = {path.name for path in (job.folder / "out" / "checkpoints").iterdir()}
    assert kept == {"latest", "step-00000005", "step-00000007"}


def test_a_checkpoint_of_a_state_has_no_files(run_torch):
    job = run_torch(
        """
        script.save_checkpoint({"weights": torch.zeros(2)}, 1)
        script.latest_checkpoint().files()
        """,
        code=1,
    )
    assert "step-00000001 has no files of save_checkpoint_files" in job.output


SHARDED = """
import os
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(script.rank())
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
found = script.latest_checkpoint()
if found:
    weights, moments = get_state_dict(model, optimizer)
    state = found.load({"model": weights, "optimizer": moments, "epoch": 0})
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    print("resumed epoch", state["epoch"], state["note"])
else:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "epoch": 3, "note": ["a", 1]}
    script.save_checkpoint(state, 1)
whole = model[0].weight.full_tensor()
print("sum", f"{whole.sum().item():.6f}")
dist.destroy_process_group()
script.finish()
"""


def test_sharded_tensors_are_written_by_their_ranks_and_read_by_them_or_whole(run_torch):
    job = run_torch(SHARDED, ranks=2)
    sums = {line for line in job.output.splitlines() if line.startswith("sum")}
    files = {path.name for path in (job.folder / "out/checkpoints/step-00000001").iterdir()}
    assert {"__0_0.distcp", "__1_0.distcp", ".metadata", "state.pt", "meta.json"} <= files
    job = run_torch(SHARDED, ranks=2)
    assert job.output.count("resumed epoch 3 ['a', 1]") == 2
    assert {line for line in job.output.splitlines() if line.startswith("sum")} == sums
    assert job.message()["checkpoint"] == 1
    job = run_torch(
        """
        state = script.latest_checkpoint().load()
        print("sum", f"{state['model']['0.weight'].sum().item():.6f}", state["epoch"])
        """
    )
    assert {f"{line} 3" for line in sums} <= set(job.output.splitlines())


def test_a_script_that_ends_without_its_end_has_left_its_result(run_torch):
    job = run_torch(
        """
        import os

        script.report({"loss": 0.5}, step=1)
        script.save_checkpoint({"step": 1}, step=1)
        os._exit(0)
        """
    )
    assert job.message()["checkpoint"] == 1
    job = run_torch(
        """
        import os

        script.report({"accuracy": 0.9}, step=2)
        script.export(torch.nn.Linear(2, 2), torch.ones(2, 2))
        os._exit(0)
        """
    )
    assert job.message()["metrics"] == {"loss": 0.5, "accuracy": 0.9}
    assert job.message()["curves"]["accuracy"] == [[2, 0.9]]
    assert job.message()["export"]["path"] == "export"
