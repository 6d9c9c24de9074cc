"""The callback for Lightning's Trainer, beside what the scripts of the docs show."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow


def test_a_trainer_of_fewer_processes_than_the_job_has_is_refused(run):
    pytest.importorskip("lightning")
    job = run(
        """
        from lightning import Trainer
        from lightning.pytorch.demos.boring_classes import BoringModel
        from kfp_pytorch.training.script.lightning import ReportCallback

        trainer = Trainer(devices=1, accelerator="cpu", logger=False, callbacks=[ReportCallback()])
        trainer.fit(BoringModel())
        """,
        code=1,
        RANK="0",
        WORLD_SIZE="2",
    )
    error = job.message()["error"]
    assert "Lightning's Trainer has 1 processes and the job 2" in error["message"]
