"""What a command imports before it answers: `kfp` alone takes half a second."""

from __future__ import annotations

import subprocess
import sys

import pytest
from harness.kfp_api.server import KfpServer

LARGE = {"kfp", "kubernetes", "yaml", "urllib3", "starlette", "torch"}
# What a list of runs has no use for: kinds of jobs, a local cluster, pipelines, settings of pods.
NOT_NEEDED = (
    "kfp.kubernetes",
    "kfp_pytorch.launcher.jobs",
    "kfp_pytorch.local.",
    "kfp_pytorch.pipelines",
    "starlette",
    "torch",
)


def imported(*arguments: str) -> set[str]:
    """What a command has imported at its end."""
    code = (
        "import sys, contextlib, kfp_pytorch.cli as cli\n"
        f"with contextlib.suppress(SystemExit): cli.main({list(arguments)!r})\n"
        "sys.stderr.write(' '.join(sys.modules))"
    )
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout
    return set(ended.stderr.split())


@pytest.mark.parametrize("arguments", [["--help"], ["schedule", "apply", "--help"]])
def test_help_is_shown_before_anything_large_is_imported(arguments: list[str]) -> None:
    found = imported(*arguments)
    assert "kfp_pytorch.cli.kfp.schedule" in found
    assert not found & LARGE


def test_a_list_of_runs_waits_for_little_but_kfp() -> None:
    server = KfpServer()
    try:
        found = imported("runs", "list", "--host", server.url)
    finally:
        server.stop()
    assert "kfp_pytorch.client.runs" in found
    assert not {name for name in found if name.startswith(NOT_NEEDED)}
