"""torchrun's agent, which also tells what killed a rank that could not tell itself.

It is `python -m torch.distributed.run` but for that record. One process a node.
"""

from __future__ import annotations

import sys
import time
import traceback

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from kfp_pytorch.training.outcome import Failure, leave, write_agent_failure


def main(arguments: list[str]) -> int:
    """Runs the agent until its ranks have ended.

    Args:
        arguments: The arguments of `torch.distributed.run`.

    Returns:
        The exit code: 0 if all ranks ended well, 1 otherwise.
    """
    try:
        run.main(arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        write_agent_failure(_of_rank(rank, failure))
        return 1
    except SignalException:
        return 1
    except Exception as error:
        # The agents of the nodes did not find each other, or torchrun refused its arguments.
        write_agent_failure(_of_agent(error, arguments))
        traceback.print_exc()
        return 1
    return 0


def _of_rank(rank: int, failure: ProcessFailure) -> Failure:
    signal_name = failure.signal_name() if failure.exitcode < 0 else ""
    if signal_name == "SIGKILL":
        message = "the process was killed by SIGKILL; out of memory is the usual reason"
    elif signal_name:
        message = f"the process was ended by {signal_name}"
    else:
        message = f"the process left with exit code {failure.exitcode}"
    # The agent looks a little later, and keeps whole seconds. A rank that was killed has no
    # record of its own, and goes before those that missed it; else a record tells more.
    seen = failure.timestamp + (-1.0 if signal_name else 1.0)
    return Failure(rank, seen, signal_name or "ExitCode", message, "", failure.exitcode)


def _of_agent(error: Exception, arguments: list[str]) -> Failure:
    where = [
        argument.partition("=")[2] for argument in arguments if argument.startswith("--master-")
    ]
    message = str(error)
    if where:
        message += f" (the first node was expected to listen at {':'.join(where)})"
    return Failure(-1, time.time(), type(error).__name__, message, traceback.format_exc())


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
