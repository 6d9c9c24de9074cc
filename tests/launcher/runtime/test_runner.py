"""What a person sees of a step that fails: the end of stderr, and the node's message."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kfp_pytorch import launcher
from kfp_pytorch.launcher.constants import TERMINATION_LOG_ENV
from kfp_pytorch.launcher.errors import JobFailed


@pytest.fixture
def a_step(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = ModuleType("kfp_pytorch.launcher.steps.a_step")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.fixture
def termination_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "termination-log"
    monkeypatch.setenv(TERMINATION_LOG_ENV, str(path))
    return path


def fail(**_: Any) -> None:
    raise JobFailed("Pod p was killed: OOMKilled.\nGive it more memory.", "OOMKilled")


def test_a_step_gets_its_inputs_and_gives_its_result(a_step: Any) -> None:
    a_step.run = lambda **inputs: inputs
    assert launcher.run_step("a_step", x=1, y="z") == {"x": 1, "y": "z"}


def test_the_message_is_the_last_thing_on_stderr_without_a_traceback(
    a_step: Any, termination_log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_step.run = fail
    termination_log.write_text("something longer that was there before")
    with pytest.raises(SystemExit) as error:
        launcher.run_step("a_step")
    assert error.value.code == 1
    stderr = capsys.readouterr().err
    assert stderr.endswith("Pod p was killed: OOMKilled.\nGive it more memory.\n")
    assert "Traceback" not in stderr
    assert termination_log.read_text() == "a_step: OOMKilled"


def test_a_value_that_kfp_has_changed_within_a_text_is_refused(
    a_step: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a_step.run = lambda **_: None
    values = {"pipelinechannel--make-Output": "C:\\new", "whole": "C:\\new", "args": ["C:\new"]}
    given = json.dumps({"inputs": {"parameterValues": values}})
    monkeypatch.setattr(sys, "argv", ["executor_main.py", "--executor_input", given])
    with pytest.raises(SystemExit):
        launcher.run_step("a_step")
    assert "make-Output is 'C:\\\\new'; KFP puts it as it is" in capsys.readouterr().err


def test_no_termination_log_is_made_where_the_kubelet_made_none(
    a_step: Any, termination_log: Path
) -> None:
    a_step.run = fail
    with pytest.raises(SystemExit):
        launcher.run_step("a_step")
    assert not termination_log.exists()


def test_a_long_short_form_is_cut_at_a_whole_character(a_step: Any, termination_log: Path) -> None:
    def run(**_: Any) -> None:
        raise JobFailed("m", "é" * 5000)

    a_step.run = run
    termination_log.touch()
    with pytest.raises(SystemExit):
        launcher.run_step("a_step")
    assert 1000 < len(termination_log.read_bytes()) <= 1024
    termination_log.read_text(encoding="utf-8")


def test_an_error_in_the_program_keeps_its_traceback_and_is_named_at_the_node(
    a_step: Any, termination_log: Path
) -> None:
    def run(**_: Any) -> None:
        raise ZeroDivisionError("by zero")

    a_step.run = run
    termination_log.touch()
    with pytest.raises(ZeroDivisionError):
        launcher.run_step("a_step")
    assert termination_log.read_text() == "a_step: an unexpected ZeroDivisionError: by zero"


def test_an_error_without_a_short_form_is_shortened_to_its_first_line() -> None:
    assert JobFailed("\nfirst\nsecond").short == "first"


def test_words_that_no_file_or_terminal_takes_hide_no_message(
    a_step: Any, termination_log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: Any) -> None:
        raise JobFailed("Rank 0 raised \x1b[31mOSError\x1b[0m: no '\udcff✨\x00.png'\rsecond\nmore")

    a_step.run = fail
    termination_log.touch()
    with pytest.raises(SystemExit):
        launcher.run_step("a_step")
    said = "Rank 0 raised OSError: no '\\udcff✨.png'second"
    assert capsys.readouterr().err.endswith(f"{said}\nmore\n")
    assert termination_log.read_text(encoding="utf-8").startswith("a_step: Rank 0 raised OSError")
