"""How pytest-xdist gives test files to workers, and what it does when a worker dies."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import Any

import pytest

# The files that one worker gets, as they share what takes seconds: a server that has imported torch
# and forks processes, and an exported model with its predictor.
SHARING = {
    "forking": (
        *("training/checkpoint/test_checkpoint", "training/data/test_input"),
        *("training/entry/test_entry_point", "training/faults/test_kills"),
        *("training/faults/test_rank_failures", "training/language/test_loop"),
        *("training/language/test_parallel", "training/parallel/test_ranks"),
        "training/parallel/test_compute_options",
    ),
    "predicting": (
        *("serving/test_export", "serving/test_grpc", "serving/test_images"),
        *("serving/test_predictor", "serving/test_reading", "serving/test_server"),
        *("serving/test_threads", "serving/test_tuning"),
    ),
}
SCOPES = {f"tests/{name}.py": scope for scope, names in SHARING.items() for name in names}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`, gives the files that share something to one worker, which has it."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return SCOPES.get(file, file)

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
