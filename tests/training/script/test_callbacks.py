"""The callbacks of other libraries' trainers, beside what the scripts of the docs show."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow


def test_a_trainer_of_lightning_with_fewer_processes_than_the_job_is_refused(run):
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


def test_a_trainer_of_transformers_with_fewer_processes_than_the_job_is_refused(run):
    pytest.importorskip("transformers")
    job = run(
        """
        import torch
        from transformers import Trainer, TrainingArguments
        from kfp_pytorch.training.script.transformers import ReportCallback

        arguments = TrainingArguments("out", report_to="none", max_steps=1)
        data = [{"input": torch.zeros(1)}]
        model = torch.nn.Linear(1, 1)
        Trainer(model, arguments, train_dataset=data, callbacks=[ReportCallback()]).train()
        """,
        code=1,
        RANK="0",
        WORLD_SIZE="2",
    )
    error = job.message()["error"]
    assert "Transformers' Trainer has 1 processes and the job 2" in error["message"]
    assert "use_cpu=True" in error["message"]
