"""Finds out whether the step's own pod is being deleted: a signal then means a drain."""

from __future__ import annotations

import contextlib
import queue
import random
import threading
import time

from kfp_pytorch.launcher.constants import POD
from kfp_pytorch.launcher.errors import StepError
from kfp_pytorch.launcher.kubernetes.api_errors import ApiError, Forbidden, NotFound
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.pod_status import is_terminating
from kfp_pytorch.launcher.kubernetes.transport import RetryPolicy

# How long a signal waits for the answer of the API server, in seconds: where a watch knows the pod,
# only for an event that is under way, or a watch that has died since it was last heard of.
_WAIT_IF_KNOWN = 0.065
_WAIT_IF_NOT = 0.3
# A server sends a bookmark about once a minute: a watch that is silent for longer may be dead.
_KNOWN_FOR = 90.0
# One failed answer says nothing; Retry-After is cut to four times `max_pause`.
_ASK = RetryPolicy(_WAIT_IF_NOT, _WAIT_IF_NOT, pause=0.03, max_pause=0.03, connect=1.0, read=1.0)
# Long, as a job that runs must cost the API server little.
_LIFETIME = 4 * 3600.0
# After an outage the launchers of a cluster read their jobs first.
_FIRST_PAUSE = 6.0
_LONGEST_PAUSE = 600.0
_HEALTHY_AFTER = 60.0


class OwnPod:
    """Watches the step's own pod from `start` on.

    `name`: the pod's name; empty outside of a pod, where nothing is asked.
    """

    def __init__(self, kube: Kube, name: str) -> None:
        self._kube = kube
        self._asking = kube.with_policy(_ASK)
        self._name = name
        self._terminating = self._started = False
        self._seen, self._heard_at = False, float("-inf")
        self._answers: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def start(self) -> None:
        """Begins to watch."""
        if self._name and not self._started:
            self._started = True
            threading.Thread(target=self._watch, daemon=True, name="OwnPod").start()

    def ask(self) -> float:
        """Asks whether the pod is being deleted, in a thread.

        Returns the monotonic time until which `is_terminating` waits for the answer.
        """
        if not self._name or self._terminating:
            return 0.0
        threading.Thread(target=self._ask, daemon=True).start()
        now = time.monotonic()
        return now + (_WAIT_IF_KNOWN if now - self._heard_at < _KNOWN_FOR else _WAIT_IF_NOT)

    def is_terminating(self, deadline: float) -> bool:
        """Whether the pod is being deleted; False where that is not known in time.

        `deadline`: what `ask` returned.
        """
        if not self._name or self._terminating:
            return self._terminating
        with contextlib.suppress(queue.Empty):
            return self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
        return self._terminating

    def _ask(self) -> None:
        try:
            pod = self._asking.get(POD, self._name, namespace=self._kube.own_namespace)
        except NotFound:
            # A pod that was there is deleted.
            self._answers.put(self._seen)
        except StepError:
            self._answers.put(False)
        else:
            self._answers.put(is_terminating(pod))

    def _watch(self) -> None:
        pause = _FIRST_PAUSE
        while not self._terminating:
            opened = time.monotonic()
            try:
                self._follow()
            except Forbidden:
                # It has to be asked when the signal comes.
                return
            except ApiError:
                pass
            finally:
                self._heard_at = float("-inf")
            healthy = time.monotonic() - opened > _HEALTHY_AFTER
            pause = _FIRST_PAUSE if healthy else min(4 * pause, _LONGEST_PAUSE)
            time.sleep(pause * random.uniform(0.3, 1.0))  # noqa: S311

    def _follow(self) -> None:
        stream = self._kube.watch(
            POD,
            name=self._name,
            namespace=self._kube.own_namespace,
            idle_timeout=1.1 * _LIFETIME,
            lifetime=_LIFETIME,
        )
        with contextlib.closing(stream):
            for kind, pod in stream:
                if kind == "DELETED" or is_terminating(pod):
                    self._terminating = True
                    self._answers.put(True)
                    return
                self._seen = self._seen or kind in ("ADDED", "MODIFIED")
                if self._seen:
                    self._heard_at = time.monotonic()
