"""What an editor and a type checker show of a component, from its source alone."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import jedi
import pytest

import kfp_pytorch
from kfp_pytorch import components

CALL = "from kfp_pytorch.components import {0}\n{0}("


@pytest.mark.parametrize("name", components.__all__)
def test_an_editor_shows_what_a_call_takes_and_the_documentation(name: str) -> None:
    (signature,) = jedi.Script(CALL.format(name)).get_signatures(2, len(name) + 1)
    taken = inspect.signature(getattr(components, name)).parameters
    shown = {each.name: each.description for each in signature.params if each.name != "*"}
    assert list(shown) == list(taken)
    for each in taken.values():
        if each.default not in (inspect.Parameter.empty, None):
            assert "=" in shown[each.name]
    assert ("Args:" if taken else "Returns:") in signature.docstring()
    assert signature.type == "function"


@pytest.mark.slow
def test_a_type_checker_knows_what_a_call_takes(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from kfp_pytorch.components import pytorch_job\n"
        "pytorch_job(image='i', num_nodes='2', cpu=4, command='python train.py')\n"
        "pytorch_job(image='i', nodes=2)\n"
        "pytorch_job()\n"
    )
    command = [sys.executable, "-m", "mypy", "--ignore-missing-imports", "mine.py"]
    environment = {**os.environ, "MYPYPATH": str(Path(kfp_pytorch.__file__).parent.parent)}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    errors = [line for line in ran.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 2, ran.stdout
    assert 'mine.py:3: error: Unexpected keyword argument "nodes"' in errors[0]
    assert 'mine.py:4: error: Missing named argument "image"' in errors[1]
