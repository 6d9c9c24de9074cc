"""The launcher travels inside the component's own source, and comes out of it whole."""

import ast
import base64
import io
import os
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml
from kfp import compiler, components
from packaging.requirements import Requirement

import kfp_pytorch
from kfp_pytorch.components import archive, embedding

ROOT = Path(kfp_pytorch.__file__).parent.parent


def where(name: str) -> str:
    import kfp_pytorch.launcher

    return f"{name} {kfp_pytorch.launcher.__file__}"


def gate(metric: str):
    from kfp_pytorch.launcher import run_step

    run_step("metric_gate", metrics=None, metric=metric, minimum=0, maximum=1)


def source_of(component):
    return component.component_spec.implementation.container.command[-1]


def test_component_compiles_and_loads_again(tmp_path):
    component = embedding.launcher_component(where)
    target = tmp_path / "where.yaml"
    compiler.Compiler().compile(component, str(target))
    executors = yaml.safe_load(target.read_text())["deploymentSpec"]["executors"]
    container = executors["exec-where"]["container"]
    assert container["image"] == embedding.BASE_IMAGE
    assert "kubernetes" in container["command"][2]
    loaded = components.load_component_from_file(str(target))
    assert loaded.component_spec.inputs.keys() == {"name"}


def test_step_imports_the_embedded_launcher_and_no_other(tmp_path):
    program = tmp_path / "program.py"
    source = source_of(embedding.launcher_component(where))
    program.write_text(f"{source}\nprint(where('here'))\n")
    run = subprocess.run(
        [sys.executable, str(program)],
        env={"PATH": os.environ["PATH"], "_KFP_RUNTIME": "true", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.startswith(f"here {tmp_path}/kfp-pytorch-")
    assert list(tmp_path.iterdir()) == [program]


def test_a_signal_while_the_source_is_unpacked_waits_for_run_step(tmp_path):
    program = tmp_path / "program.py"
    source = source_of(embedding.launcher_component(gate))
    signalled = "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n_ARCHIVE ="
    program.write_text(f"{source.replace('_ARCHIVE =', signalled, 1)}\ngate('')\n")
    run = subprocess.run(
        [sys.executable, str(program)],
        env={"PATH": os.environ["PATH"], "_KFP_RUNTIME": "true", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (143, "Stopped by a signal.\n")


def unpack(text, target):
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(text))) as tar:
        tar.extractall(target, filter="data")
    return {path.relative_to(target).as_posix() for path in target.rglob("*.py")}


def run_step_source(step):
    return f"def f():\n    from kfp_pytorch.launcher import run_step\n    run_step({step!r})\n"


STEPS = sorted(path.stem for path in (ROOT / "launcher" / "steps").glob("[!_]*.py"))


@pytest.mark.parametrize("step", STEPS)
def test_archive_is_enough_to_import_the_step(step, tmp_path):
    unpack(archive.archive_for(run_step_source(step)), tmp_path)
    importing = f"""
import importlib, sys
sys.path.insert(0, {str(tmp_path)!r})
import kfp_pytorch
assert kfp_pytorch.__file__.startswith({str(tmp_path)!r})
importlib.import_module("kfp_pytorch.launcher.runtime.runner")
importlib.import_module("kfp_pytorch.launcher.steps.{step}")
"""
    subprocess.run([sys.executable, "-c", importing], check=True)


@pytest.mark.parametrize("step", STEPS)
def test_every_import_of_the_launcher_in_the_archive_is_in_it_too(step, tmp_path):
    names = unpack(archive.archive_for(run_step_source(step)), tmp_path)
    for name in names:
        for node in ast.walk(ast.parse((tmp_path / name).read_text())):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("kfp_pytorch"):
                path = node.module.replace(".", "/")
                assert {f"{path}.py", f"{path}/__init__.py"} & names, (name, node.module)


def test_each_module_does_the_same_without_its_docstrings_on_the_same_lines():
    for path in sorted((ROOT / "launcher").rglob("*.py")):
        source = path.read_text()
        assert "__doc__" not in source, path
        blanked = archive.without_docstrings(source)
        assert blanked.count("\n") == source.count("\n")
        assert code_of(blanked) == code_of(source), path


def code_of(source):
    tree = ast.parse(source)
    for node in ast.walk(tree):
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            node.body[0] = ast.Pass(lineno=node.body[0].lineno)
    return ast.dump(tree), [n.lineno for n in ast.walk(tree) if hasattr(n, "lineno")]


def test_a_step_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="There is no step 'nonsuch'"):
        archive.archive_for(run_step_source("nonsuch"))


def test_archive_is_the_same_for_another_user_time_and_file_order(tmp_path, monkeypatch):
    package = tmp_path / "copy" / "kfp_pytorch"
    (package / "launcher" / "steps").mkdir(parents=True)
    sources = [Path(kfp_pytorch.__file__), *sorted((ROOT / "launcher").rglob("*.py"), reverse=True)]
    for source in sources:
        inside = source.relative_to(ROOT)
        target = package / (inside.name if inside.parts[0] == "kfp_pytorch" else inside)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
        target.chmod(0o600)
        os.utime(target, (1, 1))
    here = archive.archive_for(run_step_source("pytorch_job"))
    monkeypatch.setattr(kfp_pytorch, "__file__", str(package / "__init__.py"))
    assert archive.archive_for(run_step_source("pytorch_job")) == here


def test_source_comes_out_as_it_was(tmp_path):
    source = source_of(embedding.launcher_component(where))
    bare = embedding.without_launcher(source)
    assert bare is not None
    assert embedding.with_launcher(bare, "where") == source
    assert "_ARCHIVE" not in bare
    assert embedding.without_launcher(bare) is None


def test_launcher_that_outgrows_one_argument_is_refused(monkeypatch):
    monkeypatch.setattr(embedding, "archive_for", lambda _: "x" * embedding.MAX_SOURCE_BYTES)
    with pytest.raises(ValueError, match=r"'where' is 1\d\d,\d{3} bytes .* limit is 118,000"):
        embedding.launcher_component(where)


def test_pip_brings_no_urllib3_whose_streams_another_thread_cannot_end():
    wanted = {each.name: each.specifier for each in map(Requirement, embedding.PACKAGES)}
    assert "2.3.0" in wanted["urllib3"]
    assert "2.2.3" not in wanted["urllib3"]


def test_pip_installs_what_the_project_itself_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(embedding.PACKAGES) <= set(project["dependencies"])
