from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kfp_pytorch.serving import limits


@pytest.mark.parametrize(
    ("cgroup", "omp", "expected"),
    [("50000 100000", "", 1), ("100000 100000", "", 1), ("max 100000", "3", 3), ("", "0", None)],
)
def test_threads_stay_within_the_containers_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, omp: str, expected: int | None
) -> None:
    (tmp_path / "cpu.max").write_text(cgroup)
    monkeypatch.setenv(limits.OMP_ENV, omp)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    assert limits.cpu_limit(tmp_path) == (64 if expected is None else expected)


@pytest.mark.parametrize("name", limits.MEMORY_FILES)
def test_the_memory_limit_is_that_of_the_container(tmp_path: Path, name: str) -> None:
    whole = limits.memory_limit(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(f"{64 * 1024 * 1024}\n")
    assert limits.memory_limit(tmp_path) == 64 * 1024 * 1024
    (tmp_path / name).write_text("max\n")
    assert limits.memory_limit(tmp_path) == whole
    (tmp_path / name).write_text("9223372036854771712\n")
    assert limits.memory_limit(tmp_path) == whole


USES_MEMORY = """
import mmap
from kfp_pytorch.serving import limits

held = mmap.mmap(-1, 2**30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # never touched
limits.cap_memory(2**28)
bytearray(2**27)
try:
    bytearray(2**28)
except MemoryError:
    print("refused")
print(limits.memory_limit() < 2**31)
"""


def test_an_allocation_beyond_the_limit_fails_whatever_the_node_overcommits() -> None:
    run = [sys.executable, "-c", USES_MEMORY]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["refused", "True"]


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 B"), (1536, "1.5 KiB"), (2**32, "4 GiB"), (8 * 10**12, "7.276 TiB")],
)
def test_a_size_is_written_with_its_unit(size: int, words: str) -> None:
    assert limits.with_unit(size) == words
    assert "PiB" in limits.with_unit(10**400)


FILES = """
import resource
from kfp_pytorch.serving.limits import connection_limit
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(connection_limit(), connection_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (256, 1128, "500 500 1128 1128"),
        (100, 100, "1 1 100 100"),
        (1000, 1000, "436 436 1000 1000"),
    ],
)
def test_connections_are_as_many_as_there_are_files_for(
    soft: int, hard: int, expected: str
) -> None:
    command = [sys.executable, "-c", FILES.format(soft=soft, hard=hard)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == expected
