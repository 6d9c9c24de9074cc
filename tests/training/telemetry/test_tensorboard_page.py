"""What a person sees: a real TensorBoard on a resumed run's files, in a real browser."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
import torch
from harness.ports import free_port

from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.faults.stopping import StopRequest
from kfp_pytorch.training.image import loop
from kfp_pytorch.training.lifecycle import Start
from kfp_pytorch.training.parallel.process_group import ALONE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """The address of a TensorBoard that shows a run of two starts."""
    torch.set_num_threads(1)
    output = tmp_path_factory.mktemp("job")
    for epochs in (1, 2):
        config = Config(output=str(output), epochs=epochs, log_every=4, max_train_samples=500)
        loop.train(Start(config, ALONE, StopRequest()))
    port = free_port()
    command = [sys.executable, "-m", "tensorboard.main", "--host=127.0.0.1", f"--port={port}"]
    command += [f"--logdir={output / 'tensorboard'}", "--load_fast=false"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 300
        while "." not in (runs := ask(f"{address}/data/runs") or []):
            assert process.poll() is None, "TensorBoard has ended"
            assert time.monotonic() < deadline, runs
            time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait(120)


def ask(address, wanted=None):
    body = None if wanted is None else json.dumps(wanted).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())
    except (urllib.error.URLError, ConnectionError):
        return None


def test_a_curve_continues_after_a_restart_with_no_step_twice(board):
    points = ask(f"{board}/data/plugin/scalars/scalars?run=.&tag=train_loss")
    steps = [step for _time, step, _value in points]
    assert steps == sorted(set(steps))
    assert steps[-1] == 16


def test_the_hparams_tab_has_the_arguments_beside_the_results(board):
    wanted = {"experimentName": "", "startIndex": 0, "sliceSize": 10, "colParams": []}
    wanted["allowedStatuses"] = ["STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]
    groups = ask(f"{board}/data/plugin/hparams/session_groups", wanted)
    (group,) = groups["sessionGroups"]
    assert group["hparams"]["model"] == "small_cnn"
    assert group["hparams"]["batch_size"] == 64
    values = {each["name"]["tag"]: each["value"] for each in group["metricValues"]}
    assert set(values) == {"accuracy", "loss"}
    assert values["accuracy"] > 0.5


def test_a_browser_draws_a_card_for_each_report(board, tmp_path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser is installed")
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += ["--disable-3d-apis", "--disable-features=OffscreenCanvas"]
    command += ["--virtual-time-budget=15000", f"--user-data-dir={tmp_path}"]
    page = subprocess.run(
        [*command, f"{board}/#timeseries"], capture_output=True, text=True, timeout=300, check=True
    )
    for tag in ("accuracy", "confusion", "gradient_norm", "step_seconds", "train_images"):
        assert f">{tag}</span>" in page.stdout.replace("> ", ">"), tag
