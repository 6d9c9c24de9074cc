"""`--help` of the benchmarks: it measures nothing."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

FIGURES = {
    "benchmarks": ("benchmarks.package", "detection_p99_s", "checkpoint_stall_s"),
    "benchmarks.checkpoint": ("checkpoint_stall_s", "resume_to_first_step_s"),
    "benchmarks.launcher": ("detection_p99_s", "requests_per_hour", "step_overhead_s"),
    "benchmarks.package": ("container_bytes_max", "workflow_bytes_sweep"),
    "benchmarks.parallel": ("fsdp2_mfu", "fsdp2_tokens_ratio"),
    "benchmarks.script": ("script_import_s",),
    "benchmarks.serving": ("v1_throughput_ratio", "v1_p99_ratio", "grpc_ratio"),
    "benchmarks.start_up": ("help_s", "kfp_command_s", "kfp_import_s"),
    "benchmarks.telemetry": ("telemetry_step_us",),
    "benchmarks.training": ("resnet50_ratio_amp", "telemetry_ratio", "jpeg_ratio"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_benchmark_asked_for_help_names_its_figures_and_measures_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module(name, run_name="__main__")
    assert not end.value.code
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: python -m {name} [-h]")
    # The docstring's own lines, not one paragraph of them.
    assert f"\n    python -m {name}" in printed
    assert all(figure in printed for figure in FIGURES[name])
