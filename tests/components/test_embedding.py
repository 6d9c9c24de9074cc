"""The launcher travels inside the component's own source, and comes out of it whole."""

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

import kfp_pytorch
from kfp_pytorch.components import embedding

ROOT = Path(kfp_pytorch.__file__).parent.parent


def where(name: str) -> str:
    import kfp_pytorch.launcher

    return f"{name} {kfp_pytorch.launcher.__file__}"


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


def test_archive_holds_every_module_of_the_launcher(tmp_path):
    with tarfile.open(fileobj=io.BytesIO(embedding.launcher_archive())) as tar:
        tar.extractall(tmp_path, filter="data")
    launcher = ROOT / "launcher"
    modules = {path.relative_to(ROOT).as_posix(): path for path in launcher.rglob("*.py")}
    unpacked = {
        path.relative_to(tmp_path / "kfp_pytorch").as_posix(): path
        for path in tmp_path.rglob("*.py")
    }
    assert unpacked.pop("__init__.py").read_bytes() == Path(kfp_pytorch.__file__).read_bytes()
    assert unpacked.keys() == modules.keys()
    assert all(unpacked[name].read_bytes() == modules[name].read_bytes() for name in modules)


def test_archive_is_the_same_for_another_user_time_and_file_order(tmp_path, monkeypatch):
    package = tmp_path / "copy" / "kfp_pytorch"
    (package / "launcher" / "steps").mkdir(parents=True)
    sources = [Path(kfp_pytorch.__file__), *sorted((ROOT / "launcher").rglob("*.py"), reverse=True)]
    for source in sources:
        inside = source.relative_to(ROOT)
        target = package / (inside.name if inside.parts[0] == "kfp_pytorch" else inside)
        target.write_bytes(source.read_bytes())
        target.chmod(0o600)
        os.utime(target, (1, 1))
    here = embedding.launcher_archive()
    monkeypatch.setattr(kfp_pytorch, "__file__", str(package / "__init__.py"))
    assert embedding.launcher_archive.__wrapped__() == here


def test_source_comes_out_as_it_was(tmp_path):
    source = source_of(embedding.launcher_component(where))
    bare = embedding.without_launcher(source)
    assert bare is not None
    assert embedding.with_launcher(bare, "where") == source
    assert "_ARCHIVE" not in bare
    assert embedding.without_launcher(bare) is None


def test_launcher_that_outgrows_one_argument_is_refused(monkeypatch):
    monkeypatch.setattr(embedding, "launcher_archive", lambda _: b"x" * embedding.MAX_SOURCE_BYTES)
    with pytest.raises(ValueError, match=r"'where' is 13\d,\d{3} bytes .* limit is 100,000"):
        embedding.launcher_component(where)


def test_pip_installs_what_the_project_itself_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(embedding.PACKAGES) <= set(project["dependencies"])


@pytest.mark.parametrize("step", [p.stem for p in (ROOT / "launcher/steps").glob("[a-z]*.py")])
def test_archive_of_a_step_holds_all_that_the_step_imports(step, tmp_path):
    with tarfile.open(fileobj=io.BytesIO(embedding.launcher_archive(step))) as tar:
        tar.extractall(tmp_path, filter="data")
    program = (
        f"import kfp_pytorch.launcher.runner, kfp_pytorch.launcher.steps.{step} as step\n"
        "print(step.__file__)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.startswith(str(tmp_path))
