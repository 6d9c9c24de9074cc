"""What a script leaves that fails."""

from __future__ import annotations

import json
import time

FAILS = "import os\nscript.report({'loss': 1.0}, 1)\nraise ValueError('bad sample')\n"


def test_an_exception_is_left_with_its_traceback_and_does_what_it_did_before(run):
    before = time.time()
    job = run(FAILS, code=1, RANK="0", WORLD_SIZE="2")
    assert "Traceback" in job.output
    error = job.message()["error"]
    assert (error["rank"], error["type"], error["message"]) == (0, "ValueError", "bad sample")
    assert error["traceback"].endswith("ValueError: bad sample\n")
    assert before <= error["time"] <= time.time()
    assert job.metrics()["curves"]["loss"] == [[1, 1.0]]


def test_a_failure_says_whether_there_is_a_checkpoint_to_resume_from(run):
    assert run(FAILS, code=1).message()["checkpoint"] is None
    saves = "open('state', 'w').close()\nscript.save_checkpoint_files('state', 5)\n"
    assert run(saves + FAILS, code=1).message()["checkpoint"] == 5


def test_of_the_ranks_of_a_node_the_first_that_fails_is_left(run_torch):
    job = run_torch(
        """
        import os, time
        import torch.distributed as dist
        dist.init_process_group("gloo")
        if script.rank() == 1:
            raise ValueError("bad sample")
        try:
            dist.barrier()
        except RuntimeError:
            while not open(os.environ["KFP_PYTORCH_TERMINATION_LOG"]).read():
                time.sleep(0.01)
            raise
        """,
        ranks=2,
        code=1,
    )
    error = job.message()["error"]
    assert (error["rank"], error["type"]) == (1, "ValueError")


def test_a_rank_that_ends_well_does_not_hide_the_failure_of_another(run):
    job = run(
        """
        import os, subprocess, sys
        script.report({"loss": 1.0})
        fails = "from kfp_pytorch.training import script; raise ValueError('bad sample')"
        subprocess.run([sys.executable, "-c", fails], env={**os.environ, "RANK": "1"})
        """,
        RANK="0",
    )
    assert job.message()["error"]["rank"] == 1


def test_an_exception_is_left_where_a_script_has_set_a_hook_of_its_own(run):
    own = "import sys\nsys.excepthook = lambda *error: print('mine')\n"
    job = run(own + FAILS, code=1)
    assert "mine" in job.output
    assert job.message()["error"]["message"] == "bad sample"


def test_a_failure_of_a_start_before_gives_way_to_that_of_the_last_start(run):
    job = run(FAILS, code=1)
    job = run("raise KeyError('of the second start')", code=1, in_container=True)
    assert job.message()["error"]["type"] == "KeyError"
    job = run("script.report({'loss': 1.0})", in_container=True)
    assert job.message()["status"] == "succeeded"


def test_an_exit_code_stays_the_scripts_own(run):
    job = run("import sys\nscript.report({'loss': 1.0})\nsys.exit(7)", code=7)
    assert "error" not in json.dumps(job.message())


def test_an_import_alone_leaves_nothing(run):
    job = run("print(script.rank())")
    assert (job.output, (job.folder / "termination").read_text()) == ("0\n", "")
