"""What a signal does: the job's DELETE is sent before anything else, also before any print.

On Terminate, Argo's emissary signals the process group and kills what is left 0 to 1 s later, and
stdout is a broken pipe by then. So a thread of its own waits for signals, woken by Python's signal
handler in C: it does not matter what the main thread is doing.

A drained node sends the same SIGTERM, but the step's own pod then has a deletionTimestamp. The job
is left alive then, for a retry of the step to adopt.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType

from kfp_pytorch.launcher import text
from kfp_pytorch.launcher.constants import EXIT_TERMINATED, Kind
from kfp_pytorch.launcher.errors import StepError
from kfp_pytorch.launcher.kubernetes.api_errors import ApiError, Conflict, KindAbsent, NotFound
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.kubernetes.transport import RetryPolicy
from kfp_pytorch.launcher.runtime.own_pod import OwnPod
from kfp_pytorch.launcher.runtime.printing import print_error, write_termination_message

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# How long a deletion is repeated, in seconds: longer than most pods live after SIGTERM.
GRACE = 120.0
# After so many seconds without success, log and termination message say so: SIGKILL may come.
_REPORT_AFTER = 3.0
# In seconds. A server that starts may not know a kind for a moment, and an object may be written at
# the moment of its deletion.
_PAUSES = (0.1, 0.4, 1.0, 2.0)
_URGENT = RetryPolicy(GRACE, GRACE, pause=0.05, max_pause=1.0, connect=2, read=3, denied=GRACE)


@dataclass
class Target:
    """The object that must not outlive this step."""

    kube: Kube  # the cluster
    kind: Kind  # the object's kind
    name: str  # the object's name
    owns: Callable[[Object], bool]  # returns whether an object of that name is this step's
    pod_name: str = ""  # the step's own pod; empty outside of one
    keep: bool = False  # whether the object is left alive whatever happens
    uid: str = ""  # the object's uid, once known
    creating: bool = False  # whether a create may be in flight, so that the object may exist later
    folder: str = ""  # the URI of its folder, reported when a signal comes; empty for none
    propagation: str = "Foreground"  # how it is deleted; see Kube.delete
    also: Callable[[], object] | None = None  # deletes what it does not own yet; None for nothing
    own_pod: OwnPod = field(init=False)
    _urgent: Kube = field(init=False)

    def __post_init__(self) -> None:
        # Made now: nothing should be read from disk when the signal comes.
        self._urgent = self.kube.with_policy(_URGENT)
        self.own_pod = OwnPod(self.kube, self.pod_name)

    def delete(self, deadline: float) -> bool:
        """Deletes the object, also one whose create is still in flight.

        `deadline`: the monotonic time to give up at. Returns whether there was one to delete.
        """
        while True:
            creating = self.creating
            try:
                uid = self.uid or self._find()
            except KindAbsent:
                uid, creating = "", True
            if uid:
                return delete_by_uid(self._urgent, self.kind, self.name, uid, self.propagation)
            if not creating or time.monotonic() > deadline:
                return False
            time.sleep(0.02)

    def is_drain(self) -> bool:
        """Whether the step's own pod is being deleted; False when that is not known in time."""
        deadline = self.own_pod.ask()
        if not self.uid:
            # The DELETE will need it: ask for both at once.
            with contextlib.suppress(StepError):
                found = self._find()
                self.uid = self.uid or found
        return self.own_pod.is_terminating(deadline)

    def _find(self) -> str:
        try:
            found = self._urgent.get(self.kind, self.name)
        except NotFound:
            return ""
        return str(found["metadata"]["uid"]) if self.owns(found) else ""


def delete_by_uid(
    kube: Kube, kind: Kind, name: str, uid: str, propagation: str = "Foreground"
) -> bool:
    """Deletes an object if it still is the one with this uid. Returns whether it was there."""
    for pause in _PAUSES:
        try:
            kube.delete(kind, name, uid, propagation)
            return True
        except NotFound:
            return False
        except Conflict:
            if not _is_there(kube, kind, name, uid):
                return False
        except KindAbsent:
            pass
        time.sleep(pause)
    kube.delete(kind, name, uid, propagation)
    return True


def _is_there(kube: Kube, kind: Kind, name: str, uid: str) -> bool:
    """Whether the object of this name has this uid.

    A delete conflicts where it has not, or where the object was written at the same moment.
    """
    try:
        return bool(kube.get(kind, name)["metadata"].get("uid") == uid)
    except NotFound:
        return False
    except KindAbsent:
        return True


class Stopper:
    """Waits for signals, and ends the process in an orderly way when one comes."""

    def __init__(self, leave: Callable[[int], object] = os._exit, grace: float = GRACE) -> None:
        self._leave = leave
        self._grace = grace
        self._target: Target | None = None
        self._left = ""
        self._target_known = threading.Event()
        self._signalled = False
        self._done = threading.Event()
        self._installed = False

    def install(self) -> None:
        """Handles the signals from now on; only the main thread can."""
        if self._installed or threading.current_thread() is not threading.main_thread():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            return
        self._installed = True
        awake, wake = socket.socketpair()
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, self._note)
        # The thread keeps both ends of the socket open.
        threading.Thread(target=self._listen, args=(awake, wake), daemon=True).start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def set_target(self, target: Target) -> None:
        """From now on a signal deletes this object, also if it is created later."""
        if not target.keep:
            target.own_pod.start()
        self._target = target
        self._target_known.set()

    def clear_target(self) -> None:
        """From now on a signal deletes nothing."""
        self._target = None
        self._target_known.set()

    def set_left_in_place(self, message: str) -> None:
        """Adds to the message at a signal what is left as it is.

        `message`: a clause; empty for nothing.
        """
        self._left = message

    def set_target_known(self) -> None:
        """The step ends: no target will be set any more."""
        self._target_known.set()

    def check(self) -> None:
        """Ends the main thread after a signal, once the signal has been handled.

        Raises SystemExit: a signal came.
        """
        if self._signalled:
            if self._target is not None:
                # The thread that creates is here, so no create is in flight.
                self._target.creating = False
            self._done.wait(self._grace)
            raise SystemExit(EXIT_TERMINATED)

    def stop(self) -> None:
        """Handles a signal."""
        self._signalled = True
        started, message = time.monotonic(), "Stopped by a signal"
        # The step may still read its inputs, and a job of an earlier attempt may be alive.
        self._target_known.wait(self._grace)
        target = self._target
        if target is not None:
            message += f"; {self._end(target, started)}"
        elif self._left:
            message += f"; {self._left}"
        message = f"{message.rstrip('.')}."
        if target is not None and target.folder:
            message += f"\nIts folder, {text.for_resume(target.folder)}"
        _tell(message)
        # Last, as the main thread then ends the process.
        self._done.set()
        self._leave(EXIT_TERMINATED)

    def _end(self, target: Target, started: float) -> str:
        what = f"{target.kind.kind} {target.kube.namespace}/{target.name}"
        if target.keep:
            return f"{what} is left as it is, for cleanup is 'never'"
        if target.is_drain():
            return f"this pod is being deleted, so {what} is left for a retry of the step to adopt"
        not_yet = (
            f"Stopped by a signal; {what} could not be deleted yet, trying again for up to "
            f"{self._grace:g} s.\nAnother signal does not shorten this; SIGKILL does, but leaves "
            "it."
        )
        report = threading.Timer(_REPORT_AFTER, _tell, [not_yet])
        report.daemon = True
        report.start()
        try:
            found = target.delete(started + self._grace)
            if target.also:
                target.also()
        except ApiError as error:
            return f"{what} could not be deleted:\n{error.message}"
        except StepError as error:
            return f"{what} could not be deleted, do it by hand:\n{error.message}"
        finally:
            report.cancel()
        return f"{what} deleted" if found else f"there was no {what} to delete"

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        """Runs in the main thread, perhaps before the listener: `check` then waits for that."""
        self._signalled = True

    def _listen(self, awake: socket.socket, _wake: socket.socket) -> None:
        while awake.recv(1)[0] not in SIGNALS:
            continue
        with contextlib.suppress(Exception):
            self.stop()
        self._leave(EXIT_TERMINATED)


def _tell(message: str) -> None:
    write_termination_message(message.replace("\n", " "))
    print_error(text.wrapped(message))


_current = Stopper()


def current() -> Stopper:
    """The process's own stopper."""
    return _current
