"""A job reads the data sets that earlier steps made, on this machine from their own files."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.local_cluster

FILE = Path(__file__).with_name("data_pipelines.py")


def test_a_job_reads_a_file_a_folder_and_a_place_on_a_claim_that_earlier_steps_made(cluster):
    ran = cluster.run(f"{FILE}:reading")
    assert ran.code == 0, ran.stderr
    assert ran.step("pytorch-job-2") == "succeeded"
