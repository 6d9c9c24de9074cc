"""A folder is a place where code runs, and imports only what is there."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STDLIB = sys.stdlib_module_names | {"__future__"}
MAY_IMPORT = {
    # urllib3 and yaml come with the kubernetes client, protobuf, in the package google, with kfp.
    "launcher": {"kubernetes", "urllib3", "yaml"},
    "components": {"kfp", "google", "packaging", "urllib3", "yaml"},
    "pipelines": {"kfp"},
    "local": {
        *(
            "starlette",
            "uvicorn",
            "jsonpatch",
            "jsonschema_rs",
            "yaml",
            "kubernetes",
            "kfp",
            "fsspec",
            "h11",
        ),
    },
    "client": {"click", "kfp", "kfp_server_api", "google", "urllib3", "yaml"},
    "cli": {"click", "kfp", "google", "kubernetes", "urllib3", "yaml"},
}
PARTS = {
    "launcher": {"launcher"},
    "training": {"training"},
    "serving": {"serving"},
    "components": {"components", "launcher"},
    "pipelines": {"pipelines", "components", "launcher"},
    "local": {"local"},
    "client": {"client", "components", "launcher", "local", "pipelines"},
    "cli": {"cli", "client", "components", "launcher", "local", "pipelines"},
}


def imports(path: Path) -> set[str]:
    """The dotted names that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_a_folder_imports_only_the_packages_of_the_place_where_it_runs(folder: str) -> None:
    alien = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in files(folder)
        for name in imports(path)
        if name.split(".")[0] not in STDLIB | MAY_IMPORT[folder] | {"kfp_pytorch"}
    }
    assert not alien


@pytest.mark.parametrize("folder", PARTS)
def test_a_folder_imports_only_the_parts_that_go_with_it(folder: str) -> None:
    own = {f"kfp_pytorch.{part}" for part in PARTS[folder]}
    alien = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in files(folder)
        for name in imports(path)
        if name.startswith("kfp_pytorch.")
        and ".".join(name.split(".")[:2]) not in own
        and name != "kfp_pytorch.__version__"
        and not name.startswith("kfp_pytorch.launcher.constants")
    }
    assert not alien


def test_only_training_and_serving_import_torch_or_kserve() -> None:
    alien = {
        str(path.relative_to(ROOT))
        for folder in MAY_IMPORT
        for path in files(folder)
        if {name.split(".")[0] for name in imports(path)} & {"torch", "torchvision", "kserve"}
    }
    assert not alien


def test_no_file_outgrows_what_a_person_reads_in_one_go() -> None:
    folders = [*MAY_IMPORT, "training", "serving", "tests", "benchmarks"]
    long = {
        str(path.relative_to(ROOT)): lines
        for folder in folders
        for path in files(folder)
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert not long


ALL = [*MAY_IMPORT, "training", "serving", "benchmarks"]


@pytest.mark.parametrize("folder", ALL)
def test_no_folder_has_more_than_15_modules(folder: str) -> None:
    modules = Counter(path.parent for path in files(folder) if path.name != "__init__.py")
    assert not {str(path): count for path, count in modules.items() if count > 15}


@pytest.mark.parametrize("folder", ALL)
def test_each_package_has_a_docstring(folder: str) -> None:
    packages = {path.parent for path in files(folder)}
    assert all(
        ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))
        for package in packages
    )
