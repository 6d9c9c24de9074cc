"""The step `kserve_rollout`: a canary gets all of the traffic, or none."""

from __future__ import annotations

from typing import Any, NamedTuple

from kfp_pytorch.launcher.errors import CannotObserve
from kfp_pytorch.launcher.inputs.declaration import parse
from kfp_pytorch.launcher.kserve.canary.changing import Service
from kfp_pytorch.launcher.kserve.canary.inputs import RolloutInputs
from kfp_pytorch.launcher.kserve.canary.rolling import Rolling
from kfp_pytorch.launcher.kserve.deploy import Timing
from kfp_pytorch.launcher.kserve.manifest import check_host
from kfp_pytorch.launcher.kubernetes.client import Kube, connect
from kfp_pytorch.launcher.runtime import stopping
from kfp_pytorch.launcher.runtime.printing import log
from kfp_pytorch.launcher.runtime.stopping import Stopper


class Outputs(NamedTuple):
    """The output parameters."""

    outcome: str
    revision: str


def run(**inputs: Any) -> Outputs:
    """Promotes a canary or takes it back, and waits until the traffic follows.

    Returns what was done and which revision serves. Raises InputError: an input cannot work. Raises
    NotTheRevision: the canary is another revision than the input names. Raises RolloutFailed: the
    service is not there, or the new revision does not serve; the message says why. Raises
    CannotObserve: the cluster did not answer for too long. Raises ApiError: the cluster refused it.
    """
    given = parse(RolloutInputs, "kserve_rollout", inputs)
    kube = connect(given.namespace, notify=log)
    return roll(kube, given, Timing(), stopping.current())


def roll(kube: Kube, inputs: RolloutInputs, timing: Timing, stopper: Stopper) -> Outputs:
    """Does what `run` does, with everything given.

    `stopper`: reports what a signal leaves behind.
    """
    check_host(inputs.service_name, kube.namespace)
    service = Service(kube, inputs, timing)
    stopper.set_left_in_place(f"{service.title} was not changed")
    try:
        done = Rolling(service, stopper).run()
    except CannotObserve as error:
        raise CannotObserve(
            f"{error.message}\n{service.title} was left as it is. The next attempt of this step "
            "continues from what it finds."
        ) from error
    log(f"{service.title}: {done.did}; revision {done.revision or 'of others'} gets the traffic")
    return Outputs(done.did, done.revision)
