"""Checkpoints that another library saves as files: kept as they are, complete or absent."""

from __future__ import annotations

import json

SAVES = """
import os, pathlib, signal
from kfp_pytorch.training.checkpoint import catalog

found = script.latest_checkpoint()
done = 0
if found:
    folder = pathlib.Path(found.files())
    done = int((folder / "deep" / "state").read_text())
    assert (folder / "other").read_bytes() == b"other"
print("begins at", done)
saved = pathlib.Path("saved")
(saved / "deep").mkdir(parents=True, exist_ok=True)
for step in range(done + 1, 4):
    (saved / "deep" / "state").write_text(str(step))
    (saved / "other").write_bytes(b"other")
    if step == int(os.environ.get("KILL_IN", 0)):
        catalog.complete = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    script.report({"loss": 1 / step}, step)
    script.save_checkpoint_files(saved, step)
"""


def test_files_of_another_library_are_what_a_killed_job_resumes_from(run):
    job = run(SAVES, code=-9, KILL_IN="3")
    incomplete = job.folder / "out" / "checkpoints" / "step-00000003"
    assert {path.name for path in incomplete.iterdir()} == {"files"}
    run(SAVES)
    assert "begins at 2" in job.output
    assert [step for step, _ in job.metrics()["curves"]["loss"]] == [1, 2, 3]
    assert job.message()["checkpoint"] == 3
    meta = json.loads((job.folder / "out/checkpoints/step-00000003/meta.json").read_text())
    assert set(meta["files"]) == {"files/deep/state", "files/other"}


def test_a_damaged_file_makes_the_job_resume_from_the_checkpoint_before(run):
    job = run(SAVES)
    path = job.folder / "out/checkpoints/step-00000003/files/deep/state"
    path.write_text("9")
    run(SAVES)
    assert "begins at 2" in job.output


def test_one_file_is_kept_under_its_name(run):
    run("""
        import pathlib, numpy
        pathlib.Path("model.ckpt").write_text("weights")
        script.save_checkpoint_files("model.ckpt", numpy.int64(1))
        found = pathlib.Path(script.latest_checkpoint().files())
        assert [(p.name, p.read_text()) for p in found.iterdir()] == [("model.ckpt", "weights")]
    """)


def test_the_files_in_a_bucket_are_downloaded_and_removed_at_the_end(run):
    job = run(
        """
        import pathlib
        pathlib.Path("saved/deep").mkdir(parents=True)
        pathlib.Path("saved/deep/state").write_text("7")
        script.save_checkpoint_files("saved", 1)
        found = script.latest_checkpoint().files()
        assert pathlib.Path(found, "deep", "state").read_text() == "7"
        print("read", found)
        """,
        KFP_PYTORCH_OUTPUT="memory://bucket/job",
    )
    assert "read /" in job.output


def test_what_is_not_there_is_named(run):
    job = run("script.save_checkpoint_files('nonsuch', 1)", code=1)
    assert "there is no file to keep as a checkpoint: nonsuch" in job.output
