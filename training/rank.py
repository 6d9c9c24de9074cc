"""One rank: a process that trains, and tells how it ended."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from kfp_pytorch.launcher.constants import EXIT_TERMINATED
from kfp_pytorch.training.entry.rank_records import (
    EXIT_AGAIN,
    EXIT_USAGE,
    Failure,
    failure_record,
    leave,
    write_result,
)
from kfp_pytorch.training.errors import (
    AwayError,
    ConfigError,
    PeerLostError,
    RankHungError,
    Stopped,
    TrainingError,
)
from kfp_pytorch.training.faults.emergency_checkpoint import Rescue
from kfp_pytorch.training.faults.stopping import StopRequest

if TYPE_CHECKING:
    from kfp_pytorch.training.faults.watchdog import Heartbeat

NODES_ENV = "PET_NNODES"
_AGENT_SECONDS = 10.0
# How long one that is to stop waits for others, who then stop with it: well below a pod's grace.
_JOIN_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1
# Threads write checkpoints and traces, and answer Prometheus. In each of Python's own turns of 5 ms
# that they take, a GPU could stand still for want of the next step.
_TURN_SECONDS = 0.0005
_OWN_ERROR_SECONDS = 2.0
# Taken by the thread that ends this process, and never given back: one word, and a whole one.
_ENDING = threading.Lock()
LOG = logging.getLogger("kfp_pytorch.training")


def main(arguments: list[str]) -> int:
    """Trains as one rank of the job.

    Args:
        arguments: The training arguments.

    Returns:
        The exit code: 0 if training finished, 143 if it was asked to stop and saved its work,
        2 for arguments that cannot work, 138 if another rank has gone or a store does not answer,
        1 if it failed.
    """
    # Before the seconds that torch takes to import: a signal in them must not kill this rank
    # while the others go on.
    request = StopRequest.on_sigterm()
    _follow_agent()
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format=f"%(asctime)s rank {os.environ.get('RANK', '0')} %(levelname)s %(message)s",
    )
    rescue = Rescue()
    try:
        _train(arguments, request, rescue)
    except Stopped as stopped:
        LOG.info("%s", stopped)
        if ":" in os.environ.get(NODES_ENV, ""):
            # In an elastic job the agent that will start this rank again says so. A rank that left
            # before would count as one that failed, and there is a limit for these.
            request.wait(_AGENT_SECONDS)
        return EXIT_TERMINATED
    except TrainingError as error:
        code = _exit_code(error)
        _record(error, code)
        LOG.error("%s", error)
        return code
    except Exception as error:
        if _is_lost_connection(error):
            return _end_without_peer(error, rescue)
        _record(error)
        LOG.exception("training failed")
        return 1
    return 0


def _follow_agent() -> None:
    """Has this rank asked to stop when its agent is killed, which then can ask it no more."""
    if "TORCHELASTIC_RUN_ID" in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _exit_code(error: TrainingError) -> int:
    if isinstance(error, ConfigError):
        return EXIT_USAGE
    return EXIT_AGAIN if isinstance(error, AwayError) else 1


def _train(arguments: list[str], request: StopRequest, rescue: Rescue) -> None:
    # These imports take seconds, so they come after the signal handler.
    from kfp_pytorch.training.arguments import config
    from kfp_pytorch.training.faults.peer_watch import watched_peers
    from kfp_pytorch.training.faults.watchdog import Heartbeat, watched
    from kfp_pytorch.training.lifecycle import Start
    from kfp_pytorch.training.parallel import process_group

    sys.setswitchinterval(_TURN_SECONDS)
    settings = config.parse(arguments)
    if settings.is_language_model:
        from kfp_pytorch.training.language.loop import train
    else:
        from kfp_pytorch.training.image.loop import train
    heartbeat = Heartbeat()
    lost = functools.partial(_lost, rescue, heartbeat)
    joining = request.answered_within(_JOIN_SECONDS)
    with (
        process_group.joined(settings.collective_timeout, joining) as world,
        watched_peers(world, lost),
    ):
        with watched(heartbeat, world, settings.rank_timeout, _hung):
            result = train(Start(settings, world, request, heartbeat, rescue))
        # Every node's entry point writes the message: rank 0's pod may be gone when it is read.
        result = process_group.from_main(world, result)
        if world.local_rank == 0:
            write_result(result)


def _lost(rescue: Rescue, heartbeat: Heartbeat, rank: int) -> None:
    """Ends this rank because another has gone: the main thread may wait for it for ever."""
    # Whoever waits for a rank that is known to have gone hangs no more.
    heartbeat.rest()
    rescue.attempt()
    # What ended the other may be about to end this one, too, and its own words tell more.
    time.sleep(_OWN_ERROR_SECONDS)
    _leave_with(PeerLostError(f"rank {rank} has gone; its own error is the one to look for"))


def _end_without_peer(error: Exception, rescue: Rescue) -> int:
    """The end of a rank whose main thread noticed by itself that another has gone."""
    rescue.attempt()
    lost = PeerLostError("another rank has gone; its own error is the one to look for")
    lost.__cause__ = error
    # Whether the job can go on is for the pod to say that went first.
    _record(lost, EXIT_AGAIN)
    LOG.error("%s", lost, exc_info=lost)
    return EXIT_AGAIN


def _hung(error: RankHungError) -> None:
    """Ends this rank because it or another hangs: its main thread will not end it."""
    _leave_with(error)


def _leave_with(error: TrainingError) -> NoReturn:
    """Ends this process from another thread, with a code that lets the job start again."""
    _record(error, EXIT_AGAIN)
    LOG.error("%s", error, exc_info=error if error.__traceback__ else None)
    leave(EXIT_AGAIN)


def _is_lost_connection(error: Exception) -> bool:
    """Whether the main thread noticed by itself that another rank has gone."""
    # Neither gloo nor NCCL raises an error of its own for it, but both have these in the text.
    signs = ("gloo/transport", "ncclRemoteError")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


def _record(error: BaseException, exit_code: int = 1) -> None:
    """Writes torchelastic's error file, with the rank and the time in fractions of a second.

    If another thread has begun to end this process, this one waits for that. A file that cannot be
    written costs the record: the others must not wait for a rank that only failed to say why.
    """
    _ENDING.acquire()
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    failure = Failure(
        rank=int(os.environ.get("RANK", "0")),
        time=time.time(),
        type=type(error).__name__,
        message=str(error),
        traceback="".join(traceback.format_exception(error)),
        exit_code=exit_code,
    )
    try:
        Path(path).write_text(failure_record(failure), encoding="utf-8")
    except OSError as failed:
        LOG.warning("what ended this rank is told in this log alone: %s", failed)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
