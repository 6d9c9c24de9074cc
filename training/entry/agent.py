"""torchrun's agent, which also records what killed a rank; one process a node.

It is `python -m torch.distributed.run` with that record.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from pathlib import Path

from torch.distributed import run
from torch.distributed.elastic.multiprocessing import errors
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from kfp_pytorch.launcher.constants import EXIT_TERMINATED
from kfp_pytorch.training.entry.rank_records import Failure, exit_now, write_agent_failure


def main(arguments: list[str]) -> int:
    """Runs the agent until its ranks have ended. Returns 0 if all ended well, 1 otherwise."""
    # It logs at each failure that no variable is set to copy the records of the ranks.
    logging.getLogger(errors.error_handler.__name__).setLevel(logging.CRITICAL)
    try:
        run.main(arguments)
    except ChildFailedError as error:
        write_agent_failure(_first_of(error))
        return 1
    except SignalException as error:
        # If the signal was sent to the agent alone the entry point does not know of it.
        name = error.sigval.name
        failure = Failure(-1, time.time(), name, f"stopped by {name}", "", EXIT_TERMINATED)
        write_agent_failure(failure)
        return 1
    except Exception as error:
        # The agents did not find each other, or torchrun refused its arguments.
        write_agent_failure(_of_agent(error, arguments))
        traceback.print_exc()
        return 1
    return 0


def _first_of(error: ChildFailedError) -> Failure:
    """The first failure without a record of its own, or else the first one."""
    # A rank that was killed has no record. It failed before those that missed it, though the agent,
    # which keeps whole seconds, may have the later time for it.
    unrecorded = {rank: f for rank, f in error.failures.items() if not Path(f.error_file).is_file()}
    if not unrecorded:
        rank, failure = error.get_first_failure()
        # The record says more, so it has to be the first by time.
        return _of_rank(rank, failure, failure.timestamp + 1.0)
    rank = min(unrecorded, key=lambda rank: unrecorded[rank].timestamp)
    return _of_rank(rank, unrecorded[rank], unrecorded[rank].timestamp - 1.0)


def _of_rank(rank: int, failure: ProcessFailure, at: float) -> Failure:
    signal_name = failure.signal_name() if failure.exitcode < 0 else ""
    if signal_name == "SIGKILL":
        message = "the process was killed by SIGKILL; out of memory is the usual reason"
    elif signal_name:
        message = f"the process was ended by {signal_name}"
    else:
        message = f"the process left with exit code {failure.exitcode}"
    return Failure(rank, at, signal_name or "ExitCode", message, "", failure.exitcode)


def _of_agent(error: Exception, arguments: list[str]) -> Failure:
    where = [
        argument.partition("=")[2] for argument in arguments if argument.startswith("--master-")
    ]
    message = str(error)
    rendezvous = os.environ.get("PET_RDZV_ENDPOINT")
    if where:
        message += f" (the first node was expected to listen at {':'.join(where)})"
    elif rendezvous:
        kind = os.environ.get("PET_RDZV_BACKEND", "c10d")
        message += f" (the rendezvous, {kind}, was expected at {rendezvous})"
    if isinstance(error, ValueError) and os.environ.get("PET_NPROC_PER_NODE") == "gpu":
        message += " (PET_NPROC_PER_NODE is gpu: give this pod GPUs, or set a number)"
    return Failure(-1, time.time(), type(error).__name__, message, traceback.format_exc())


if __name__ == "__main__":
    exit_now(main(sys.argv[1:]))
