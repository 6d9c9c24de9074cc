"""One rank: a process that trains, and records how it ended."""

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
from kfp_pytorch.training import errors
from kfp_pytorch.training.entry import rank_records
from kfp_pytorch.training.errors import PeerLostError, RankHungError, Stopped, TrainingError
from kfp_pytorch.training.faults.emergency_checkpoint import EmergencySave
from kfp_pytorch.training.faults.stopping import StopRequest

if TYPE_CHECKING:
    from kfp_pytorch.training.faults.watchdog import Heartbeat

NODES_ENV = "PET_NNODES"
_AGENT_SECONDS = 10.0
# How long a rank that was asked to stop waits for others to join: well below a pod's grace period.
_JOIN_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1
# Threads write checkpoints and traces, and answer Prometheus. In each of Python's switch intervals
# of 5 ms that they take, a GPU could be idle before the next step.
_SWITCH_SECONDS = 0.0005
_OWN_ERROR_SECONDS = 2.0
# Taken by the thread that ends this process, and never released: one record is written, and whole.
_ENDING = threading.Lock()
LOG = logging.getLogger("kfp_pytorch.training")


def main(arguments: list[str]) -> int:
    """Trains as one rank of the job. Returns the exit code; see `__main__`."""
    # Before the seconds that torch takes to import: a signal in them must not kill this rank while
    # the others continue.
    request = StopRequest.on_sigterm()
    _stop_with_agent()
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format=f"%(asctime)s rank {os.environ.get('RANK', '0')} %(levelname)s %(message)s",
    )
    emergency = EmergencySave()
    try:
        _train(arguments, request, emergency)
    except Stopped as stopped:
        LOG.info("%s", stopped)
        if ":" in os.environ.get(NODES_ENV, ""):
            # In an elastic job the agent asks ranks to stop before it starts them again. A rank
            # that ends before counts as failed, and there is a limit of failures.
            request.wait(_AGENT_SECONDS)
        return EXIT_TERMINATED
    except TrainingError as error:
        code = _exit_code(error)
        _record(error, code)
        LOG.error("%s", error)
        return code
    except Exception as error:
        if _is_lost_connection(error):
            return _end_without_peer(error, emergency)
        _record(error)
        LOG.exception("training failed")
        return 1
    return 0


def _stop_with_agent() -> None:
    """Lets the kernel ask this rank to stop when its agent is killed."""
    if "TORCHELASTIC_RUN_ID" in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _exit_code(error: TrainingError) -> int:
    if isinstance(error, errors.ConfigError):
        return rank_records.EXIT_USAGE
    return rank_records.EXIT_RETRYABLE if isinstance(error, errors.UnavailableError) else 1


def _train(arguments: list[str], request: StopRequest, emergency: EmergencySave) -> None:
    # These imports take seconds, so they come after the signal handler.
    from kfp_pytorch.training.arguments import config
    from kfp_pytorch.training.faults.peer_watch import watched_peers
    from kfp_pytorch.training.faults.watchdog import Heartbeat, watched
    from kfp_pytorch.training.lifecycle import Start
    from kfp_pytorch.training.parallel import process_group

    sys.setswitchinterval(_SWITCH_SECONDS)
    settings = config.parse(arguments)
    if settings.is_language_model:
        from kfp_pytorch.training.language.loop import train
    else:
        from kfp_pytorch.training.image.loop import train
    heartbeat = Heartbeat()
    lost = functools.partial(_lost, emergency, heartbeat)
    joining = request.answered_within(_JOIN_SECONDS)
    with (
        process_group.joined(settings.collective_timeout, joining) as world,
        watched_peers(world, lost),
    ):
        with watched(heartbeat, world, settings.rank_timeout, _hung):
            result = train(Start(settings, world, request, heartbeat, emergency))
        # Every node's entry point writes the message: rank 0's pod may be gone when it is read.
        result = process_group.broadcast_from_main(world, result)
        if world.local_rank == 0:
            rank_records.write_result(result)


def _lost(emergency: EmergencySave, heartbeat: Heartbeat, rank: int) -> None:
    """Ends this rank because another is lost: the main thread may wait for it for ever."""
    # To wait for a rank that is known to be lost is not to hang.
    heartbeat.idle()
    emergency.attempt()
    # The same cause may be about to end this rank, too, and its own error says more.
    time.sleep(_OWN_ERROR_SECONDS)
    _end_with(PeerLostError(f"rank {rank} has gone; its own error is the one to look for"))


def _end_without_peer(error: Exception, emergency: EmergencySave) -> int:
    """Ends this rank when its main thread noticed by itself that another is lost."""
    emergency.attempt()
    lost = PeerLostError("another rank has gone; its own error is the one to look for")
    lost.__cause__ = error
    # The exit code of the first pod to fail decides whether the job is started again.
    _record(lost, rank_records.EXIT_RETRYABLE)
    LOG.error("%s", lost, exc_info=lost)
    return rank_records.EXIT_RETRYABLE


def _hung(error: RankHungError) -> None:
    """Ends this rank because it or another hangs: its main thread will not end it."""
    _end_with(error)


def _end_with(error: TrainingError) -> NoReturn:
    """Ends this process from another thread, with an exit code that the operator retries."""
    _record(error, rank_records.EXIT_RETRYABLE)
    LOG.error("%s", error, exc_info=error if error.__traceback__ else None)
    rank_records.exit_now(rank_records.EXIT_RETRYABLE)


def _is_lost_connection(error: Exception) -> bool:
    """Whether the main thread noticed by itself that another rank is lost."""
    # Neither gloo nor NCCL has an exception class for it, but both have these in the text.
    signs = ("gloo/transport", "ncclRemoteError")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


def _record(error: BaseException, exit_code: int = 1) -> None:
    """Writes torchelastic's error file, with the rank and the time in fractions of a second.

    If another thread has begun to end this process, this one waits for that. If the file cannot be
    written the rank ends all the same: the others must not wait for it.
    """
    _ENDING.acquire()
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    failure = rank_records.Failure(
        rank=int(os.environ.get("RANK", "0")),
        time=time.time(),
        type=type(error).__name__,
        message=str(error),
        traceback="".join(traceback.format_exception(error)),
        exit_code=exit_code,
    )
    try:
        Path(path).write_text(rank_records.failure_record(failure), encoding="utf-8")
    except OSError as failed:
        LOG.warning("the error that ended this rank is in this log alone: %s", failed)


if __name__ == "__main__":
    rank_records.exit_now(main(sys.argv[1:]))
