"""The launcher as one file in a ConfigMap: the same bytes everywhere, and enough for a step."""

import ast
import base64
import bz2
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import kfp
import pytest
import urllib3
import yaml

import kfp_pytorch
from kfp_pytorch.components import bundle, forms, interfaces, stripping

ROOT = Path(kfp_pytorch.__file__).parent.parent
# A ConfigMap holds 1 MiB; each step reads it when it starts.
LIMIT = 400_000
COMPONENTS = sorted(each.name for each in interfaces.INTERFACES)


@pytest.fixture(scope="module")
def archive() -> bytes:
    return bundle.archive()


def texts_of(archive: bytes) -> dict[str, str]:
    names, texts = json.loads(bz2.decompress(archive))
    return dict(zip(names, texts, strict=True))


@pytest.fixture(scope="module")
def unpacked(archive, tmp_path_factory) -> Path:
    """The zip as the bootstrap puts it on the path, and KFP alone beside it, as pip installs it."""
    folder = tmp_path_factory.mktemp("step")
    with zipfile.ZipFile(folder / "launcher.zip", "w") as target:
        for name, text in texts_of(archive).items():
            target.writestr(name, text)
    (folder / "site").mkdir()
    (folder / "site" / "kfp").symlink_to(Path(kfp.__file__).parent)
    return folder


def run_alone(folder: Path, program: str) -> subprocess.CompletedProcess:
    """Runs Python with the archive, KFP and the standard library, and nothing else."""
    path = os.pathsep.join([str(folder / "launcher.zip"), str(folder / "site")])
    environ = {"PATH": os.environ["PATH"], "_KFP_RUNTIME": "true", "PYTHONPATH": path}
    # Without the folder that Python runs in, which may be the checkout.
    command = [sys.executable, "-P", "-S", "-c", program]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def test_the_manifest_is_what_the_code_makes():
    assert bundle.manifest_path().read_text() == bundle.manifest(), "Run `make compiled`."


def test_the_manifest_is_made_of_the_urllib3_that_development_pins():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = [p for p in project["optional-dependencies"]["dev"] if p.startswith("urllib3")]
    assert pins == [f"urllib3=={urllib3.__version__}"], "Run `make setup`, or pin this one."


def test_with_another_urllib3_the_steps_ask_for_the_configmap_of_the_manifest(
    tmp_path, monkeypatch
):
    newer = tmp_path / "urllib3"
    shutil.copytree(Path(urllib3.__file__).parent, newer)
    (newer / "_version.py").write_text('__version__ = "2.99.0"\n')
    monkeypatch.setattr(urllib3, "__file__", str(newer / "__init__.py"))
    bundle.reference.cache_clear()
    shipped = bundle.manifest_path().read_text()
    assert bundle.manifest() != shipped
    assert f"  name: {bundle.reference().name}\n" in shipped
    source = forms.configmap_source("kfp_pytorch.components.metric_gate.component", "metric_gate")
    annotations = yaml.safe_load(shipped)["metadata"]["annotations"]
    assert f"SHA='{annotations[bundle.SHA256_ANNOTATION]}'" in source


def test_the_manifest_is_small_enough_for_a_configmap_and_for_each_start_of_a_step():
    assert len(bundle.manifest().encode()) < LIMIT


def test_the_manifest_is_an_immutable_configmap_that_no_tool_prunes(archive):
    made = yaml.safe_load(bundle.manifest())
    digest = hashlib.sha256(archive).hexdigest()
    assert made["immutable"] is True
    version = kfp_pytorch.__version__
    assert made["metadata"]["name"] == f"kfp-pytorch-launcher-{version}-{digest[:10]}"
    assert made["metadata"]["annotations"] == {
        "kfp-pytorch/sha256": digest,
        "argocd.argoproj.io/sync-options": "Prune=false",
        "kustomize.toolkit.fluxcd.io/prune": "disabled",
    }
    assert base64.b64decode(made["binaryData"]["launcher"]) == archive


def test_the_manifest_comes_with_the_others():
    kustomization = yaml.safe_load((ROOT / "manifests" / "kustomization.yaml").read_text())
    assert bundle.manifest_path().name in kustomization["resources"]


def test_steps_ask_for_the_configmap_of_the_manifest():
    made = yaml.safe_load(bundle.manifest_path().read_text())
    assert bundle.reference().name == made["metadata"]["name"]
    assert bundle.reference().sha256 == made["metadata"]["annotations"]["kfp-pytorch/sha256"]


def test_the_archive_is_the_same_for_another_user_time_and_file_order(
    archive, tmp_path, monkeypatch
):
    package = tmp_path / "copy" / "kfp_pytorch"
    for name, source in sorted(bundle.sources().items(), reverse=True):
        target = package.parent / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
        target.chmod(0o600)
        os.utime(target, (1, 1))
    monkeypatch.setattr(kfp_pytorch, "__file__", str(package / "__init__.py"))
    assert bundle.archive() == archive


def of_steps(*names: str) -> str:
    """A program that imports what steps run, as their pods do, and prints where it is from."""
    return f"""
import importlib, sys
importlib.import_module("kfp_pytorch.launcher.runtime.runner")
for name in {names}:
    importlib.import_module(f"kfp_pytorch.launcher.steps.{{name}}")
    function = getattr(importlib.import_module(f"kfp_pytorch.components.{{name}}.component"), name)
    print(function.__name__)
foreign = {{"kubernetes", "yaml", "google", "requests"}} & set(sys.modules)
print(sys.modules["urllib3"].__file__ if "urllib3" in sys.modules else "none", foreign)
"""


@pytest.mark.parametrize(
    "steps", [COMPONENTS, *(pytest.param([name], marks=pytest.mark.slow) for name in COMPONENTS)]
)
def test_the_steps_need_the_archive_and_kfp_alone(steps, unpacked):
    ran = run_alone(unpacked, of_steps(*steps))
    assert ran.returncode == 0, ran.stderr
    *names, (urllib3, foreign) = [line.split(" ", 1) for line in ran.stdout.splitlines()]
    assert names == [[name] for name in steps]
    assert urllib3 == "none" or urllib3.startswith(str(unpacked / "launcher.zip"))
    assert foreign == "set()"


def test_a_step_reads_the_files_that_are_no_modules_from_the_archive(unpacked):
    program = """
from kfp_pytorch.launcher import patterns
from kfp_pytorch.launcher.outputs import curves
print(patterns.__file__, patterns.advice("program", "CUDA error: out of memory"))
print(curves.render({}))
"""
    ran = run_alone(unpacked, program)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(str(unpacked / "launcher.zip"))
    assert "The GPU's memory is full" in ran.stdout
    assert "figcaption {" in ran.stdout


def test_every_import_of_this_package_in_the_archive_is_in_it_too(archive):
    texts = texts_of(archive)
    names = {name for name in texts if name.startswith("kfp_pytorch/") and name.endswith(".py")}
    # What makes a component of the function: no step imports it.
    absent = {"kfp_pytorch.components.definition"}
    for name in names:
        for node in ast.walk(ast.parse(texts[name])):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kfp_pytorch"):
                path = node.module.replace(".", "/")
                inside = {f"{path}.py", f"{path}/__init__.py"} & names
                assert inside or node.module in absent, (name, node.module)


@pytest.mark.slow
def test_each_module_does_the_same_without_docstrings_and_comments_on_the_same_lines():
    for path in sorted((ROOT / "launcher").rglob("*.py")):
        source = path.read_text()
        assert "__doc__" not in source, path
        blanked = stripping.without_words(source)
        assert blanked.count("\n") == source.count("\n")
        assert code_of(blanked) == code_of(source), path


def code_of(source):
    tree = ast.parse(source)
    for node in ast.walk(tree):
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            node.body[0] = ast.Pass(lineno=node.body[0].lineno)
    return ast.dump(tree), [n.lineno for n in ast.walk(tree) if hasattr(n, "lineno")]


def python_of(version):
    """A Python of a version: on the path, or one of pyenv's, whose links may not work."""
    installed = Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python")
    candidates = [shutil.which(f"python{version}"), *sorted(installed)]
    for each in filter(None, candidates):
        if subprocess.run([each, "-c", ""], check=False).returncode == 0:
            return each
    return None


@pytest.mark.parametrize(
    "version", [*(pytest.param(v, marks=pytest.mark.slow) for v in ("3.11", "3.12")), "3.13"]
)
def test_the_archive_is_the_same_with_another_python(version, archive, tmp_path):
    python = python_of(version)
    if python is None:
        pytest.skip(f"there is no Python {version}")
    for package in (kfp, kfp_pytorch, urllib3):
        place = Path(package.__file__).parent
        (tmp_path / place.name).symlink_to(place)
    program = (
        "import hashlib; from kfp_pytorch.components import bundle;"
        "print(hashlib.sha256(bundle.archive()).hexdigest())"
    )
    environ = {"PATH": os.environ["PATH"], "_KFP_RUNTIME": "true", "PYTHONPATH": str(tmp_path)}
    command = [python, "-S", "-B", "-c", program]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == hashlib.sha256(archive).hexdigest(), ran.stderr
