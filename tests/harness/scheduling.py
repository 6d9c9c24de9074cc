"""How pytest-xdist gives test files to workers, and what it does when a worker dies."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import Any

import pytest

# The files whose processes are forked from a server that has imported torch, which takes seconds.
FORKING = tuple(
    f"tests/training/{folder}/test_{name}.py"
    for folder, name in (
        *(("checkpoint", "checkpoint"), ("entry", "entry_point"), ("data", "input")),
        *(("faults", "kills"), ("faults", "rank_failures"), ("language", "loop")),
        *(("language", "parallel"), ("parallel", "ranks"), ("parallel", "compute_options")),
    )
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`, gives the files that need a server to one worker, which has one."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return "forking" if file in FORKING else file

        def remove_node(self, node: Any) -> str | None:
            """Takes the rest of a dead worker's files back, without the test that it died in.

            pytest-xdist 3.8 gives that test to the next worker too, which then dies as well.
            """
            units = self.assigned_work.pop(node).values()
            unfinished = [test for unit in units for test, done in unit.items() if not done]
            if not unfinished:
                return None
            for unit in units:
                tests = {test: done for test, done in unit.items() if test != unfinished[0]}
                if not all(tests.values()):
                    self.workqueue[self._split_scope(next(iter(tests)))] = tests
            for other in self.assigned_work:
                self._reschedule(other)
            return unfinished[0]

        def _reschedule(self, node: Any) -> None:
            # A worker that replaces a dead one is given work when it has collected the tests.
            if node in self.registered_collections:
                super()._reschedule(node)

    return Scheduling(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Closes a worker's pipes in what it forks.

    The controller knows by their end that the worker has died. A forked process that holds them
    would keep it waiting for as long as it lives.
    """
    for plugin in config.pluginmanager.get_plugins():
        if type(plugin).__name__ == "WorkerInteractor":
            io = plugin.channel.gateway._io
            os.register_at_fork(after_in_child=partial(_close, io.infile, io.outfile))


def _close(*files: Any) -> None:
    for file in files:
        with contextlib.suppress(OSError, ValueError):
            os.close(file.fileno())
