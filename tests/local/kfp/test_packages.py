"""`packages_to_install` of a step goes into an environment of its own, never into this Python."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from harness.wheels import write_wheel
from kfp.dsl.component_factory import _get_packages_to_install_command

from kfp_pytorch.local.kfp import packages
from kfp_pytorch.local.kfp.packages import InstallError, installed

PROGRAM = ["sh", "-ec", "exec python3 -c 'import {0}; print({0}.__file__)'"]

INSTALL = """
import json, pathlib, sys
from kfp_pytorch.local.kfp.packages import installed
command, root, variables = json.loads(sys.argv[1])
installed(command, pathlib.Path(root), variables, print)
"""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return write_wheel(tmp_path)


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """Those of a step, with no package index to be reached, and with a person's own habits."""
    here = str(Path(sys.executable).parent)
    path = os.pathsep.join([here, os.environ.get("PATH", os.defpath)])
    return {
        "PATH": path,
        "HOME": os.environ.get("HOME", "/"),
        "PIP_USER": "1",
        "PIP_TARGET": str(tmp_path / "own"),
        "PIP_PREFIX": str(tmp_path / "own"),
        "PIP_RETRIES": "0",
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    }


def command(*packages: str, install_kfp: bool = True) -> list[str]:
    head = _get_packages_to_install_command(
        packages_to_install=list(packages), install_kfp_package=install_kfp
    )
    return [*head, *PROGRAM]


def test_packages_are_found_by_the_step_and_by_nobody_else(
    tmp_path: Path, wheel: Path, variables: dict[str, str]
) -> None:
    told: list[str] = []
    program, found = installed(command(str(wheel)), tmp_path, variables, told.append)
    assert program == PROGRAM
    program[2] = program[2].format("try_it")
    ran = subprocess.run(program, env=variables | found, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(str(tmp_path / "environments"))
    assert importlib.util.find_spec("try_it") is None
    assert not (tmp_path / "own").exists()
    assert len(told) == 1
    again = installed(command(str(wheel)), tmp_path, variables, told.append)[1]
    assert again["PATH"] == found["PATH"]
    assert len(told) == 1, "the second step installs nothing"


def test_a_step_that_installs_nothing_but_kfp_runs_with_this_pythons(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    found = installed(command(), tmp_path, variables, pytest.fail)
    assert found == (PROGRAM, {})
    assert installed(["python3", "-c", "x"], tmp_path, variables, pytest.fail)[1] == {}
    assert not (tmp_path / "environments").exists()


def test_a_failure_has_pips_last_words_and_leaves_no_environment(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    with pytest.raises(InstallError) as caught:
        installed(command("no-such-package-anywhere"), tmp_path, variables, lambda _: None)
    assert "No matching distribution found for no-such-package-anywhere" in str(caught.value)
    assert f"Without a network, install them into {sys.prefix} first" in str(caught.value)
    assert not list((tmp_path / "environments").glob("*/"))


def folder_of(found: dict[str, str]) -> Path:
    return Path(found["PATH"].partition(os.pathsep)[0]).parent


def test_what_an_interrupted_installation_left_is_made_anew(
    tmp_path: Path, wheel: Path, variables: dict[str, str]
) -> None:
    """The index takes the connection and never answers; the installation is killed then."""
    with socket.socket() as index:
        index.bind(("127.0.0.1", 0))
        index.listen()
        url = f"http://127.0.0.1:{index.getsockname()[1]}/simple"
        given = [command("kfp-pytorch-try"), str(tmp_path), variables | {"PIP_INDEX_URL": url}]
        line = [sys.executable, "-c", INSTALL, json.dumps(given)]
        with subprocess.Popen(line) as process:
            index.accept()[0].close()
            process.kill()
    (left,) = (tmp_path / "environments").glob("*/")
    (left / "broken").touch()
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheel.parent)}
    found = installed(command("kfp-pytorch-try"), tmp_path, variables | offline, lambda _: None)[1]
    assert folder_of(found) == left
    assert not (left / "broken").exists()


def test_a_folder_that_has_changed_is_installed_again(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    source = tmp_path / "mine"
    source.mkdir()
    (source / "module.py").write_text("")
    keys = []
    for time in (1, 1, 2):
        os.utime(source / "module.py", (time, time))
        keys.append([*packages._local_files(command(f"{source}[extra]")[2])])
        assert keys[-1] == [*packages._local_files(command(f"mine @ file://{source}")[2])]
    assert keys[0] == keys[1] != keys[2]
    assert [*packages._local_files(command("mine", "other>=1")[2])] == []


def test_steps_at_the_same_time_install_once(
    tmp_path: Path, wheel: Path, variables: dict[str, str]
) -> None:
    told: list[str] = []
    arguments = (command(str(wheel), install_kfp=False), tmp_path, variables, told.append)
    both = [threading.Thread(target=installed, args=arguments) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert [line.split()[0] for line in told].count("Installing") == 1
