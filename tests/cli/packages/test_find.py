"""Compiled packages: components alone, what is no pipeline, and what KFP writes that cannot run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from kfp import compiler

from kfp_pytorch.components import metric_gate, pytorch_job

pytestmark = pytest.mark.usefixtures("quick_yaml")


def test_yaml_that_is_no_pipeline_is_refused(tmp_path, cli):
    path = tmp_path / "other.yaml"
    path.write_text("kind: Pod\n")
    assert "is not a compiled pipeline" in cli("compile", path).output


@pytest.fixture
def component(tmp_path: Path) -> Path:
    """The component, compiled without a pipeline around it."""
    path = tmp_path / "component.yaml"
    compiler.Compiler().compile(pytorch_job, str(path))
    return path


def test_what_kfp_fills_in_is_not_asked_for(component, cli):
    result = cli("run", component, "--local")
    assert "pytorch-job needs -p image=…" in result.output
    assert "task_config" not in result.output


def test_a_component_that_was_compiled_alone_runs(component, cli, tmp_path):
    command = 'command=["python", "-c", "print(\\"hello\\")"]'
    options = ("-p", "image=python:3.12-slim", "-p", command, "--root", tmp_path / "home")
    result = cli("run", component, "--local", *options)
    assert result.exit_code == 0, result.output
    assert "master-0 | hello" in result.output


def test_a_component_that_takes_an_artifact_is_refused_before_anything_starts(tmp_path, cli):
    path = tmp_path / "gate.yaml"
    compiler.Compiler().compile(metric_gate, str(path))
    result = cli("run", path, "--local", "-p", "minimum=0.5", "--root", tmp_path / "home")
    assert result.exit_code == 1
    assert "metric-gate takes the artifact 'metrics'" in result.output
    assert not (tmp_path / "home").exists()


LOOPS = """
from kfp import dsl

@dsl.component
def say(text: str) -> str:
    return text

@dsl.pipeline
def apart(rate: str, size: str):
    say(text=f"{rate} {size}")

@dsl.pipeline(name="p")
def pipeline(rates: list = ["a"]):
    with dsl.ParallelFor(WHAT) as rate:
        with dsl.ParallelFor(["x"]) as size:
            STEP
"""


@pytest.mark.parametrize(
    ("what", "step"),
    [
        ("rates", 'say(text=f"{rate}")'),
        ('["a"]', 'say(text=f"{size}")'),
        ('[{"b": "c"}]', "say(text=rate.b)"),
    ],
)
def test_an_item_that_kfps_compiler_loses_is_said_with_the_way_out(tmp_path, cli, what, step):
    source = LOOPS.replace("WHAT", what).replace("STEP", step)
    (tmp_path / "lost.py").write_text(source)
    result = cli("compile", tmp_path / "lost.py:pipeline", "--output", tmp_path / "lost.yaml")
    assert result.exit_code == 1
    assert "damaged" not in result.output
    assert "loses the item of a loop" in result.output
    assert "to a pipeline of its own (@dsl.pipeline)" in result.output
    mended = LOOPS.replace("WHAT", "rates").replace("STEP", "apart(rate=rate, size=size)")
    (tmp_path / "mended.py").write_text(mended)
    result = cli("compile", tmp_path / "mended.py:pipeline", "--output", tmp_path / "mended.yaml")
    assert result.exit_code == 0, result.output


def test_a_part_of_an_item_that_is_lost_in_a_text_of_its_own_loop_is_told_of(tmp_path, cli):
    loop = LOOPS.replace("WHAT", '[{"b": "c"}]').replace('        with dsl.ParallelFor(["x"])', "#")
    lost, mended = tmp_path / "lost.py", tmp_path / "mended.py"
    lost.write_text(loop.replace("    STEP", 'say(text=f"{rate.b}")'))
    result = cli("compile", lost, "--output", tmp_path)
    assert result.exit_code == 1
    assert "A part of it, such as item.a, it loses in any text" in result.output
    mended.write_text(loop.replace("    STEP", 'apart(rate=rate.b, size="x")'))
    result = cli("compile", f"{mended}:pipeline", "--output", tmp_path)
    assert result.exit_code == 0, result.output


NAMED = """
from neighbour import NAME
from kfp import dsl
from kfp_pytorch.components import metric_gate, pytorch_job

@dsl.pipeline(name=NAME)
def pipeline():
    job = pytorch_job(image="i")
    metric_gate(metrics=job.outputs["metrics"], metric="accuracy", minimum=0.5)
"""


def test_files_may_have_the_names_of_modules_and_their_neighbours_may_be_called_alike(
    tmp_path, cli
):
    files = []
    for folder, name in (("a", "kubernetes"), ("b", "kfp"), ("c", "json"), ("d", "types")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "neighbour.py").write_text(f"NAME = 'the-{name}'")
        files.append(tmp_path / folder / f"{name}.py")
        files[-1].write_text(NAMED)
    for file in files:
        result = cli("compile", file, "--output", tmp_path / "package.yaml")
        assert result.exit_code == 0, result.output
        assert f"name: the-{file.stem}\n" in (tmp_path / "package.yaml").read_text()


def test_a_file_that_changed_within_the_same_second_is_read_anew(tmp_path, cli, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file, neighbour = tmp_path / "mine.py", tmp_path / "neighbour.py"
    for number in (1, 2):
        neighbour.write_text(f"NAME = 'number-{number}'")
        file.write_text(f"{NAMED}    # {number}")
        for path in (file, neighbour):
            os.utime(path, (1e9, 1e9))
        result = cli("compile", file, "--output", tmp_path / "package.yaml")
        assert result.exit_code == 0, result.output
        assert f"name: number-{number}\n" in (tmp_path / "package.yaml").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"mine.py", "neighbour.py", "package.yaml"}
    assert not sys.dont_write_bytecode


def test_annotations_may_be_text(tmp_path, cli):
    path = tmp_path / "postponed.py"
    path.write_text(
        "from __future__ import annotations\n"
        "from kfp import dsl\n"
        "from kfp.dsl import Input, Model, Output\n"
        "@dsl.component\n"
        "def make(model: Output[Model], names: list[str], count: int = 2) -> float:\n"
        "    open(model.path, 'w').write(' '.join(names))\n"
        "    return count / 4\n"
        "@dsl.component\n"
        "def show(model: Input[Model], number: float):\n"
        "    print(open(model.path).read(), number)\n"
        "@dsl.pipeline\n"
        "def postponed(names: list[str], count: int = 3):\n"
        "    made = make(names=names, count=count)\n"
        "    show(model=made.outputs['model'], number=made.outputs['Output'])\n"
    )
    names = ("-p", 'names=["a", "b"]')
    result = cli("run", path, "--local", *names, "--root", tmp_path / "home")
    assert result.exit_code == 0, result.output
    assert "a b 0.75" in result.output


def test_a_byte_order_mark_does_not_cost_the_file_its_comments(mine, cli, tmp_path):
    path = tmp_path / "adding.yaml"
    assert cli("compile", f"{mine}:adding", "--output", path).exit_code == 0
    before = path.read_bytes()
    path.write_bytes(b"\xef\xbb\xbf" + before)
    assert cli("compile", path, "--output", path).exit_code == 0
    assert path.read_bytes() == before
