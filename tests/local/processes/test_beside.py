"""Commands that run beside the one of a container."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kfp_pytorch.local.processes import beside, guarded

_PROGRAM = [sys.executable, "-I", "-S", beside.__file__]
Served = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def pods(tmp_path: Path) -> Path:
    """The folder of all pods, whose path is longer than that of a socket may be."""
    folder = tmp_path / ("p" * 120)
    (folder / "ns_a_uid" / "containers" / "main").mkdir(parents=True)
    return folder


@pytest.fixture
def serve(pods: Path) -> Iterator[Served]:
    """Starts the container `main` of the pod `a`, under a guard as all containers are."""
    started = []

    def start(*command: str, **variables: str) -> subprocess.Popen[str]:
        path = beside.socket_of(pods / "ns_a_uid", "main")
        line = [*_PROGRAM, "serve", str(path), "--", *command]
        started.append(guarded.popen(line, env={**os.environ, **variables}, cwd=pods))
        while not path.exists() and started[-1].poll() is None:
            time.sleep(0.01)
        return started[-1]

    yield start
    for each in started:
        each.terminate()
        each.wait()


def execute(pods: Path, *command: str, pod: str = "a") -> subprocess.CompletedProcess[str]:
    line = [*_PROGRAM, "exec", str(pods), "ns", pod, "--container", "main", "--", *command]
    return subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)


def test_a_command_runs_in_the_containers_environment_and_folder(serve: Served, pods: Path) -> None:
    serve("sleep", "60", MARK="of the container")
    ran = execute(pods, "/bin/sh", "-c", 'echo "$MARK"; pwd; echo error >&2; exit 7')
    assert ran.returncode == 7
    assert ran.stdout.splitlines() == ["of the container", str(pods)]
    assert ran.stderr == "error\n"


def test_all_that_a_command_prints_is_copied(serve: Served, pods: Path) -> None:
    serve("sleep", "60")
    ran = execute(pods, "/bin/sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x")
    assert ran.stdout == "x" * 3_000_000


def test_a_signal_is_told_as_a_shell_tells_it(serve: Served, pods: Path) -> None:
    serve("sleep", "60")
    assert execute(pods, "/bin/sh", "-c", "kill -9 $$").returncode == 137


def test_a_command_that_is_not_there_is_named(serve: Served, pods: Path) -> None:
    serve("sleep", "60")
    ran = execute(pods, "nonsuch")
    assert ran.returncode == 126
    assert 'exec: "nonsuch": No such file or directory' in ran.stderr


def test_a_container_that_has_just_started_is_waited_for(serve: Served, pods: Path) -> None:
    line = [*_PROGRAM, "exec", str(pods), "ns", "a", "--container", "main", "--", "echo", "ran"]
    asking = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    time.sleep(0.3)
    serve("sleep", "60")
    assert asking.communicate(timeout=30)[0] == "ran\n"


def test_a_pod_that_is_not_there_is_named(serve: Served, pods: Path) -> None:
    serve("sleep", "60")
    ran = execute(pods, "true", pod="b")
    assert ran.returncode == 1
    assert 'container "main" of pod "b" does not run' in ran.stderr


def test_what_a_command_leaves_ends_with_the_container(serve: Served, pods: Path) -> None:
    container = serve("sleep", "60")
    ran = execute(pods, "/bin/sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!")
    left = int(ran.stdout)
    os.kill(left, 0)
    container.terminate()
    assert container.wait() == 143
    with pytest.raises(ProcessLookupError):
        os.kill(left, 0)


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -9 $$", 137)])
def test_the_container_ends_as_its_own_command_does(serve: Served, script: str, code: int) -> None:
    assert serve("/bin/sh", "-c", script).wait() == code


def test_a_command_whose_container_ends_ends_too(serve: Served, pods: Path) -> None:
    container = serve("sleep", "60")
    line = [*_PROGRAM, "exec", str(pods), "ns", "a", "--container", "main", "--", "/bin/sh", "-c"]
    running = subprocess.Popen([*line, "echo started; exec sleep 60"], stdout=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stdout.readline() == b"started\n"
    container.terminate()
    assert running.wait(timeout=30) == 137
