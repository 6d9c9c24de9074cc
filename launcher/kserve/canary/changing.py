"""Reads and changes one InferenceService, against everybody else who does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kfp_pytorch.launcher.constants import DEPLOYMENT, INFERENCE_SERVICE
from kfp_pytorch.launcher.errors import StepError
from kfp_pytorch.launcher.kserve import names
from kfp_pytorch.launcher.kserve.awaited import find
from kfp_pytorch.launcher.kserve.canary import spec
from kfp_pytorch.launcher.kserve.canary.inputs import RolloutInputs
from kfp_pytorch.launcher.kserve.deploy import Timing
from kfp_pytorch.launcher.kubernetes import api_errors
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.objects import Object, dig
from kfp_pytorch.launcher.runtime.printing import Progress

_REPORTED_EVERY = 60.0


class RolloutFailed(StepError):
    """A canary was not promoted, or not taken back."""


class NotTheRevision(RolloutFailed):
    """The canary is another revision than the one that is to be promoted."""


@dataclass
class Service:
    """One InferenceService while a canary is promoted or taken back."""

    kube: Kube
    inputs: RolloutInputs
    timing: Timing
    _uid: str = field(default="", init=False)

    @property
    def title(self) -> str:
        """The service with its kind."""
        return names.title(self.kube.namespace, self.inputs.service_name)

    def read(self) -> Object:
        """Reads it.

        Raises RolloutFailed: it is not there, another has its name now, or there is no KServe.
        """
        found = self._found()
        uid = str(dig(found, "metadata", "uid") or "")
        gone = found is None or dig(found, "metadata", "deletionTimestamp")
        if gone and not self._uid:
            raise RolloutFailed(
                f"There is no {self.title} (or it is being deleted), so that there is nothing to "
                f"{self.inputs.action}. kserve_deploy creates it."
            )
        if found is None or gone or (self._uid and uid != self._uid):
            raise RolloutFailed(
                f"{self.title} was deleted meanwhile, by a person or another program. Find out "
                "which; kserve_deploy creates it again."
            )
        self._uid = uid
        return found

    def _found(self) -> Object | None:
        deadline = time.monotonic() + self.timing.kind_grace
        while True:
            try:
                return find(self.kube, INFERENCE_SERVICE, self.inputs.service_name)
            except api_errors.KindAbsent as error:
                if time.monotonic() > deadline:
                    raise RolloutFailed(f"{error.message} Is KServe installed?") from error
                time.sleep(self.timing.poll_interval)

    def canary_deployment(self) -> Object | None:
        """Reads the Deployment of the canary in Standard mode."""
        return find(self.kube, DEPLOYMENT, spec.deployment_name(self.inputs.service_name))

    def change(self, decide: Callable[[Object], Object]) -> Object:
        """Writes what `decide` makes of the service as it is, until nobody has written meanwhile.

        `decide`: returns the service as it is to be, or raises. It decides anew after each
        conflict. Returns the service as it is. Raises RolloutFailed: it was deleted, or others
        write it all the time. Raises Refused: a webhook does not take it.
        """
        deadline = time.monotonic() + self.timing.deletion_timeout
        while True:
            before = self.read()
            wanted = decide(before)
            if wanted == before:
                return before
            try:
                return self.kube.replace(INFERENCE_SERVICE, wanted)
            except (api_errors.Conflict, api_errors.NotFound) as error:
                if time.monotonic() > deadline:
                    name, said = self.inputs.service_name, error.server_message
                    raise RolloutFailed(names.not_written(self.title, name, said)) from error
                time.sleep(self.timing.confirm_interval)

    def _said(self, missing: Callable[[], str]) -> str:
        """What is missing; an answer that says nothing of the service is retried."""
        try:
            return missing()
        except api_errors.Forbidden:
            raise
        except api_errors.ApiError as error:
            return f"an answer of the cluster that can be read ({error.short})"

    def wait(self, missing: Callable[[], str]) -> None:
        """Waits until `missing` says several times in a row that nothing is missing.

        Raises RolloutFailed: not within the timeout; the service stays as it is.
        """
        deadline, progress = time.monotonic() + self.inputs.timeout, Progress(_REPORTED_EVERY)
        confirmed = 0
        while confirmed < self.timing.confirmations:
            asked = time.monotonic()
            waits_for = self._said(missing)
            answered = time.monotonic() - asked
            if answered > self.timing.unavailable_after:
                # The server was unavailable, to KServe too perhaps: that time does not count.
                deadline += answered
            confirmed = 0 if waits_for else confirmed + 1
            if waits_for and time.monotonic() > deadline:
                raise RolloutFailed(
                    f"{self.title}: after {self.inputs.timeout} s (timeout) it still waits for "
                    f"{waits_for}. What was asked for is written: KServe goes on. Look at its "
                    "controller's log, or start the step again."
                )
            if waits_for:
                progress.report(f"waiting for {waits_for}")
            time.sleep(self.timing.poll_interval if waits_for else self.timing.confirm_interval)
