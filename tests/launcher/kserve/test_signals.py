"""A signal while a deployment goes on, in its own process: what it leaves, and what it says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.faults.actions import Stall
from harness.faults.plan import Fault

from kfp_pytorch.launcher.constants import SPEC_HASH_LABEL

PROGRAM = """
from types import SimpleNamespace
from kfp_pytorch.launcher import run_step
model = SimpleNamespace(uri="minio://b/model", metadata={})
service = SimpleNamespace(path="unused", metadata={})
run_step("kserve_deploy", service=service, model=model, service_name="digits")
"""
KServe = ThreadedServer = Any


def ended(server: ThreadedServer, folder: Path, when: Callable[[], Any], until: Any) -> str:
    """The last words of a deployment that gets a signal once this is so."""
    log = folder / "termination-log"
    log.touch()
    environ = {"KUBECONFIG": str(server.kubeconfig), "KFP_PYTORCH_TERMINATION_LOG": str(log)}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=os.environ | environ, stderr=subprocess.PIPE, text=True
    )
    until(when)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 143
    assert errors.strip().endswith(log.read_text().strip())
    return log.read_text()


def test_a_service_that_was_written_is_left_and_named_with_its_revision(
    server: ThreadedServer, kserve: KServe, tmp_path: Path, until: Any
) -> None:
    words = ended(server, tmp_path, lambda: kserve.service() and looked_at(server), until)
    carried = (kserve.service() or {})["spec"]["predictor"]["annotations"][SPEC_HASH_LABEL]
    assert words == (
        "Stopped by a signal; InferenceService default/digits is left as it is, and may still "
        f"serve this step's revision {carried}."
    )


def test_a_write_in_flight_is_not_said_to_be_made_or_not(
    server: ThreadedServer, kserve: KServe, tmp_path: Path, until: Any
) -> None:
    server.faults.add(Fault(Stall(), "create", "*/inferenceservices*", times=None))
    words = ended(server, tmp_path, server.faults.struck, until)
    assert "whether InferenceService default/digits was changed is not known" in words


def looked_at(server: ThreadedServer) -> bool:
    """Whether the step has gone on to wait."""
    return any("deployments" in request.path for request in server.requests)
