"""Texts and numbers reach the training container, and come back, as they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness.kfp.backend import run
from harness.kfp.steps import Try, drive

from kfp_pytorch.client.packages import find as packages
from kfp_pytorch.components.forms import THIS_PYTHON, image_form

pytestmark = pytest.mark.local_cluster

PIPELINE = f"{Path(__file__).with_name('training_pipelines.py')}:anything"
TEXTS = [
    *('{"a":"b"}', "it's", 'say "hi"', "a\\b", "a\\\\b", "$HOME", "$(HOME)", "$$(HOME)", "`date`"),
    *("$(date)", "{{x}}", "{{$.inputs.x}}", "✨", "𝛼", "", " ", "--foo", "-", "a\nb", "a\tb", "%s"),
    *("\\u2728", "é", "\u2028", "*", "~", "a;b|c&d", "#x", "null", "None", "true", "1e5"),
]
# Writes what it was given where the test finds it.
ECHO = """
import json, os, sys
given = {"argv": sys.argv[2:], "env": {k: v for k, v in os.environ.items() if k[:2] == "T_"}}
with open(sys.argv[1], "w") as file:
    json.dump(given, file)
"""
# What a program may say that knows numbers which JSON does not.
DIVERGES = """
import os
with open(os.environ["KFP_PYTORCH_TERMINATION_LOG"], "w") as log:
    log.write('{"version": 1, "status": "succeeded", "world_size": 1, "metrics": {'
              '"accuracy": 0.5, "loss": NaN, "best": Infinity, "worst": -Infinity, "huge": 1e999, '
              '"long": 1' + "0" * 400 + ', "none": null, "text": "0.5", "flag": true}}')
"""


def test_texts_reach_the_container_byte_for_byte_through_backend_and_launcher(where, tmp_path):
    package = image_form(packages.find_one(PIPELINE).spec, THIS_PYTHON)
    seen = tmp_path / "seen.json"
    variables = {f"T_{number}": text for number, text in enumerate(TEXTS)}
    made = run(
        package,
        where,
        command=["python", "-c", ECHO, str(seen)],
        args=TEXTS,
        env=variables | {"T_INT": 3, "T_FLOAT": 1e-05, "T_BOOL": True},
        hyperparameters={"quote": 'say "hi"', "rate": 1e-05, "epochs": 20, "amp": False},
    )
    assert made.succeeded, made.log
    given = json.loads(seen.read_text())
    # KFP hands an object's keys over in their order of letters.
    options = ["--amp=false", "--epochs=20", '--quote=say "hi"', "--rate=1e-05"]
    assert given["argv"] == [*TEXTS, *options]
    numbers = {"T_INT": "3", "T_FLOAT": "1e-05", "T_BOOL": "true"}
    assert given["env"] == variables | numbers


def test_metrics_that_are_no_finite_numbers_turn_no_successful_step_red(where):
    package = image_form(packages.find_one(PIPELINE).spec, THIS_PYTHON)
    given = {"image": "train", "name": "diverged", "command": ["python", "-c", DIVERGES]}
    ended = Try(drive(package, "pytorch-job", where, given), where).wait()
    assert ended.code == 0, ended.log
    metrics = ended.artifacts["metrics"]["metadata"]
    assert metrics["accuracy"] == 0.5
    assert not {"loss", "best", "worst", "huge", "long", "none"} & metrics.keys()
    assert "loss" in ended.log.partition("created PyTorchJob")[2]  # it is said, not hidden
