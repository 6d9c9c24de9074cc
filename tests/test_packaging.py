"""The wheel gives what the checkout gives, and no more than a step needs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import kfp
import pytest

from kfp_pytorch.components import bundle, forms
from kfp_pytorch.components.interfaces import INTERFACES

ROOT = Path(__file__).resolve().parent.parent
UV = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
pytestmark = pytest.mark.skipif(UV is None, reason="uv is not installed")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from what git knows of this checkout."""
    source = tmp_path_factory.mktemp("source")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    for name in filter(None, listed):
        if (ROOT / name).exists() or (ROOT / name).is_symlink():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run([UV, "build", "--quiet", "--wheel", "--out-dir", out, source], check=True)
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    package = ROOT / "kfp_pytorch"
    expected = {
        f"kfp_pytorch/{path.relative_to(package)}"
        for top in package.iterdir()
        for path in ([top] if top.is_file() else top.resolve().rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
        for path in [path if path.is_relative_to(package) else package / path.relative_to(ROOT)]
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("kfp_pytorch/")}
    assert held == expected


def test_the_wheel_of_the_launcher_holds_what_a_step_imports_and_needs_urllib3_alone(
    tmp_path: Path,
) -> None:
    bundle.write_sources(tmp_path / "source")
    command = [UV, "build", "--quiet", "--wheel", "--out-dir", tmp_path, tmp_path / "source"]
    subprocess.run(command, check=True)
    (built,) = tmp_path.glob("*.whl")
    assert "==".join(built.name.replace("_", "-").rsplit("-", 4)[:2]) == forms.PACKAGE
    with zipfile.ZipFile(built) as archive:
        held = {name for name in archive.namelist() if name.startswith("kfp_pytorch/")}
        (metadata,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    assert held == set(bundle.sources())
    required = [n for n in lines if n.startswith("Requires-Dist") and "; extra ==" not in n]
    assert required == ["Requires-Dist: urllib3>=2.3"]


@pytest.mark.slow
def test_the_wheel_alone_gives_the_command_and_the_components_without_torch(
    wheel: Path, tmp_path: Path
) -> None:
    environment = tmp_path / "empty"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, environment], check=True)
    python = environment / "bin" / "python"
    subprocess.run([UV, "pip", "install", "--quiet", "--python", python, wheel], check=True)

    code = (
        "import sys\n"
        "from kfp_pytorch.components import pytorch_job\n"
        "assert pytorch_job.component_spec\n"
        "assert not {'torch', 'kserve', 'starlette'} & set(sys.modules)\n"
        "import importlib.util\n"
        "assert importlib.util.find_spec('torch') is None\n"
        "print('imported')\n"
    )
    run = subprocess.run(
        [python, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (run.stdout.strip(), run.returncode) == ("imported", 0), run.stderr

    command = subprocess.run(
        [environment / "bin" / "kfp-pytorch", "compile", "train_and_serve", "--output", "p.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert command.returncode == 0, command.stderr
    compiled = (ROOT / "compiled" / "train_and_serve.yaml").read_text(encoding="utf-8")
    assert (tmp_path / "p.yaml").read_text(encoding="utf-8") == compiled


@pytest.mark.slow
def test_a_script_has_its_library_by_the_wheel_without_anything_that_it_depends_on(
    wheel: Path, tmp_path: Path
) -> None:
    environment = tmp_path / "empty"
    python = environment / "bin" / "python"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, environment], check=True)
    install = [UV, "pip", "install", "--quiet", "--no-deps", "--python", python, wheel]
    subprocess.run(install, check=True)
    code = (
        "from kfp_pytorch.training import script\n"
        "script.report({'loss': 0.5}, step=1)\n"
        "script.finish({'accuracy': 0.9})\n"
    )
    run = subprocess.run(
        [python, "-c", code], cwd=tmp_path, env={}, capture_output=True, text=True, check=False
    )
    assert (run.stdout, run.returncode) == ("step=1 loss=0.5\n", 0), run.stderr
    kept = json.loads((tmp_path / "kfp-pytorch-output" / "metrics.json").read_text())
    assert kept["metrics"] == {"accuracy": 0.9, "loss": 0.5}


@pytest.mark.slow
def test_what_kfp_installs_and_the_wheel_of_the_launcher_are_enough_for_every_step(
    tmp_path: Path,
) -> None:
    """As in the launcher image, and in package form."""
    bundle.write_sources(tmp_path / "source")
    environment = tmp_path / "empty"
    python = environment / "bin" / "python"
    pip = [UV, "pip", "install", "--quiet", "--python", python]
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, environment], check=True)
    subprocess.run([*pip, "--no-deps", f"kfp=={kfp.__version__}"], check=True)
    subprocess.run([*pip, tmp_path / "source"], check=True)
    code = "".join(
        f"from kfp_pytorch.components.{name}.component import {name}\n"
        f"import kfp_pytorch.launcher.steps.{name}\n"
        for name in (interface.name for interface in INTERFACES)
    )
    run = subprocess.run(
        [python, "-c", code],
        cwd=tmp_path,
        env={"_KFP_RUNTIME": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
