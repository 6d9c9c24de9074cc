"""torchrun's agent, which also tells what killed a rank that could not tell itself.

It is `python -m torch.distributed.run` but for that record. One process a node.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from pathlib import Path

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import (
    ChildFailedError,
    ProcessFailure,
    error_handler,
)

from kfp_pytorch.launcher.constants import EXIT_TERMINATED
from kfp_pytorch.training.entry.rank_records import Failure, leave, write_agent_failure


def main(arguments: list[str]) -> int:
    """Runs the agent until its ranks have ended.

    Args:
        arguments: The arguments of `torch.distributed.run`.

    Returns:
        The exit code: 0 if all ranks ended well, 1 otherwise.
    """
    # It says at each failure that nothing is set which would copy the ranks' records.
    logging.getLogger(error_handler.__name__).setLevel(logging.CRITICAL)
    try:
        run.main(arguments)
    except ChildFailedError as error:
        write_agent_failure(_first_of(error))
        return 1
    except SignalException as error:
        # It may have come here alone, and then the entry point knows nothing of it.
        name = error.sigval.name
        failure = Failure(-1, time.time(), name, f"stopped by {name}", "", EXIT_TERMINATED)
        write_agent_failure(failure)
        return 1
    except Exception as error:
        # The agents of the nodes did not find each other, or torchrun refused its arguments.
        write_agent_failure(_of_agent(error, arguments))
        traceback.print_exc()
        return 1
    return 0


def _first_of(error: ChildFailedError) -> Failure:
    """The failure that only the agent can tell of, or else the first one."""
    # A rank that was killed, or left by itself, has no record of its own. It goes before those
    # that missed it, and may be seen a little after them: the agent keeps whole seconds.
    silent = {rank: f for rank, f in error.failures.items() if not Path(f.error_file).is_file()}
    if not silent:
        rank, failure = error.get_first_failure()
        # The record tells more, and has to be the one that is found.
        return _of_rank(rank, failure, failure.timestamp + 1.0)
    rank = min(silent, key=lambda rank: silent[rank].timestamp)
    return _of_rank(rank, silent[rank], silent[rank].timestamp - 1.0)


def _of_rank(rank: int, failure: ProcessFailure, seen: float) -> Failure:
    signal_name = failure.signal_name() if failure.exitcode < 0 else ""
    if signal_name == "SIGKILL":
        message = "the process was killed by SIGKILL; out of memory is the usual reason"
    elif signal_name:
        message = f"the process was ended by {signal_name}"
    else:
        message = f"the process left with exit code {failure.exitcode}"
    return Failure(rank, seen, signal_name or "ExitCode", message, "", failure.exitcode)


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
    leave(main(sys.argv[1:]))
